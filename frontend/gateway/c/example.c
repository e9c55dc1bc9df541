/* The shortest gateway in C. Run beside a leaf with workers: example c=127.0.0.1:7410 MODEL [TOKENIZER TEXT], where TOKENIZER is a
 * folder with a tokenizer.json: with it the text is routed, without it token ids. */

#include <kvatlas_frontend.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char** argv) {
  const char* leaf = argc > 1 ? argv[1] : "c=127.0.0.1:7410";
  uint32_t tokens[33];
  char models[4096], error[256];
  kvatlas_frontend* frontend = NULL;
  kvatlas_route* route = NULL;
  kvatlas_frontend_options options;
  kvatlas_route_request request;
  for (uint32_t i = 0; i < 33; ++i) tokens[i] = 1000 + i;

  kvatlas_frontend_options_init(&options, sizeof(options));
  options.leaves = &leaf;
  options.leaves_count = 1;
  options.deadline_us = 10000000;
  kvatlas_route_request_init(&request, sizeof(request));
  request.model = argc > 2 ? argv[2] : "example-model";
  if (argc > 4) {
    snprintf(models, sizeof(models), "%s=%s", request.model, argv[3]);
    options.models = models;
    request.text = argv[4]; /* of a chat: messages_json; or body, with all that the engine is asked */
    request.text_size = strlen(argv[4]);
  } else {
    request.tokens = tokens;
    request.tokens_count = 33;
  }
  int32_t code = kvatlas_frontend_create(&options, &frontend, error, sizeof(error));
  if (code == KVATLAS_OK) {
    code = kvatlas_frontend_route(frontend, &request, &route, error, sizeof(error));
  }
  if (code != KVATLAS_OK) {
    fprintf(stderr, "%s: %s\n", kvatlas_frontend_code_name(code), error);
    kvatlas_frontend_destroy(frontend);
    return 1;
  }
  printf("%s %u\n", kvatlas_route_worker(route), kvatlas_route_overlap_blocks(route));

  kvatlas_route_report report;
  kvatlas_route_report_init(&report, sizeof(report));
  report.finished = 1;
  kvatlas_frontend_report(frontend, kvatlas_route_decision_id(route), &report);
  kvatlas_route_free(route);
  kvatlas_frontend_destroy(frontend);
  return 0;
}
