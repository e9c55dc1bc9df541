/* The C interface of the Rust library: token ids of a text, and the text that an engine reads of a
 * request. C++ callers use tokenizer.h and text_model.h one folder up.
 *
 * Place: a static library built from this folder by its `build`, which tools/install calls; Bazel
 * sees it as //frontend/prompt/text/rust.
 * Truth: calls return 0, or the number of the error in absl::StatusCode, and give its text to
 * `error`. After an error nothing else is written, except pieces already given. A panic in the
 * library is an error like others (13, internal).
 * Cost: depends on the text, not on its size alone. A thread's calls between kvatlas_work_begin and
 * kvatlas_work_end take about the time given; then they fail (4, deadline exceeded). A text of more
 * than 4 MiB that cannot be cut fails (12, unimplemented), and so does one of more than 1 MiB that
 * our own encoder does not take.
 * Threads: a handle serves any number of threads at once; only freeing it needs it alone.
 * Lifetime: views and what callbacks are given live as long as the call. Callbacks must not throw.
 */

#ifndef KVATLAS_FRONTEND_PROMPT_TEXT_RUST_KVATLAS_TEXT_H_
#define KVATLAS_FRONTEND_PROMPT_TEXT_RUST_KVATLAS_TEXT_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  const char* data;
  size_t size;
} kvatlas_text_view;

/* Takes text, in one call. */
typedef struct {
  void* to;
  void (*text)(void* to, const char* data, size_t size);
} kvatlas_text_sink;

typedef struct kvatlas_tokenizer kvatlas_tokenizer;
typedef struct kvatlas_templates kvatlas_templates;

/* A limit for the calls of this thread, together. */
void kvatlas_work_begin(uint64_t microseconds);
void kvatlas_work_end(void);

/* `json`: a tokenizer.json. `options`: a JSON object with any of
 *   "rules": "file" for tokenizer.json alone, else as transformers loads the folder (src/rules.rs)
 *   "tokenizer_config", "special_tokens_map": the contents of these files
 *   "model_type": of config.json */
int kvatlas_tokenizer_new(kvatlas_text_view json, kvatlas_text_view options,
                          kvatlas_tokenizer** out, kvatlas_text_sink error);
void kvatlas_tokenizer_free(kvatlas_tokenizer* tokenizer);

/* A description of what was loaded, as a JSON object. */
int kvatlas_tokenizer_describe(const kvatlas_tokenizer* tokenizer, kvatlas_text_sink out,
                               kvatlas_text_sink error);

/* Takes the tokens of one piece of the text: the bytes from the end of the piece before to `end`. */
typedef void (*kvatlas_tokenizer_piece)(void* to, size_t end, const uint32_t* tokens, size_t count);

/* The tokens of `text`, without those that a post-processor puts around it, in pieces. The text is
 * cut only where that changes no token; no piece but the last is shorter than `piece_bytes_min`.
 * Text that follows such a cut can later be tokenized alone, with `continues` not 0. With
 * `piece_bytes_min` SIZE_MAX the text is one piece, and the crate `tokenizers` encodes it: tests
 * compare our own encoder with that. */
int kvatlas_tokenizer_encode(const kvatlas_tokenizer* tokenizer, kvatlas_text_view text,
                             int continues, size_t piece_bytes_min, void* to,
                             kvatlas_tokenizer_piece piece, kvatlas_text_sink error);

/* `sources`: a JSON object of Jinja templates by name, as Hugging Face's tokenizers have them
 * ("default", "tool_use"); may be empty. `special_tokens`: a JSON object of variables that every
 * template sees. */
int kvatlas_templates_new(kvatlas_text_view sources, kvatlas_text_view special_tokens,
                          kvatlas_templates** out, kvatlas_text_sink error);
void kvatlas_templates_free(kvatlas_templates* templates);

enum { KVATLAS_PLAIN = 0, KVATLAS_VLLM = 1, KVATLAS_SGLANG = 2 };
enum {
  KVATLAS_COMPLETIONS = 0,
  KVATLAS_CHAT = 1,
  KVATLAS_RESPONSES = 2,
  KVATLAS_MESSAGES = 3,
  KVATLAS_GENERATE = 4
};

/* How the engine that gets the request reads it (src/request/mod.rs). */
typedef struct {
  int engine;
  int path;
  kvatlas_text_view reasoning_parser;
  kvatlas_text_view tool_call_parser;
  kvatlas_text_view model_type; /* of config.json */
  int mistral_tokenizer; /* not 0: a tekken.json or a tokenizer.model.v* is in the model's folder */
  kvatlas_text_view default_kwargs; /* a JSON object, or empty */
  int trust_templates;              /* 0: a request's own chat_template is refused (12) */
  int64_t now;                      /* seconds since 1970; dates are in the machine's time zone */
  size_t context_max;               /* tokens; 0: not known */
} kvatlas_convention;

enum { KVATLAS_TEXT = 0, KVATLAS_TEXT_AROUND = 1 };

/* Takes the parts of a prompt in order; the ids of each follow those of the part before. */
typedef struct {
  void* to;
  /* Takes a text that is encoded by itself. KVATLAS_TEXT: names of special tokens are these tokens.
   * KVATLAS_TEXT_AROUND: also with the tokens that the post-processor adds. */
  void (*text)(void* to, const char* data, size_t size, int kind);
  void (*ids)(void* to, const uint32_t* ids, size_t count);
  /* Set where the engine cuts the prompt to so many tokens; 0: it does not. */
  size_t keep_last;
  size_t keep_first;
  /* The last tokens of the only text, so many that with those around it there are at most this. */
  size_t keep_last_of_text;
} kvatlas_reading;

/* Reads a client's `body` as the engine does. 3: the engine refuses such a request, too. 12: the
 * engine may take it, but what it reads cannot be told here. */
int kvatlas_request_read(const kvatlas_templates* templates, const kvatlas_convention* convention,
                         kvatlas_text_view body, kvatlas_reading* out, kvatlas_text_sink error);

#ifdef __cplusplus
}
#endif

#endif /* KVATLAS_FRONTEND_PROMPT_TEXT_RUST_KVATLAS_TEXT_H_ */
