/* The shortest engine in C. Run beside a leaf: kvatlas-leaf & example 127.0.0.1:7410, or any other HOST:PORT of its --grpc. */

#include <kvatlas_publisher.h>
#include <stdio.h>

int main(int argc, char** argv) {
  const char* leaf = argc > 1 ? argv[1] : "127.0.0.1:7410";
  const uint64_t blocks[2] = {0xa1, 0xa2}; /* the engine's own names of two blocks of 16 tokens */
  uint32_t tokens[32];
  char error[256];
  kvatlas_publisher* publisher = NULL;
  kvatlas_publisher_options options;
  for (uint32_t i = 0; i < 32; ++i) tokens[i] = 1000 + i;

  kvatlas_publisher_options_init(&options, sizeof(options));
  options.leaves = &leaf;
  options.leaves_count = 1;
  options.worker = "example-worker";
  options.model = "example-model";
  if (kvatlas_publisher_create(&options, &publisher, error, sizeof(error)) != KVATLAS_OK) {
    fprintf(stderr, "%s\n", error);
    return 2;
  }
  kvatlas_publisher_stored(publisher, KVATLAS_TIER_DEVICE, blocks, 2, NULL, tokens, 32, NULL);

  /* An engine never waits; an example does, until the leaf knows, and until it is told to go. */
  const int32_t code = kvatlas_publisher_wait_acknowledged(publisher, 10000);
  printf("%s\n", kvatlas_code_name(code));
  kvatlas_publisher_last_error(publisher, error, sizeof(error));
  if (code != KVATLAS_OK) fprintf(stderr, "%s\n", error); /* why */
  fflush(stdout);
  getchar();
  kvatlas_publisher_stop(publisher, 1, 10000);
  kvatlas_publisher_destroy(publisher);
  return code == KVATLAS_OK ? 0 : 1;
}
