/* What are the token ids of this text, and what text does this chat become? The `tokenizers` and `minijinja` crates behind a C
 * interface; C++ callers use tokenizer.h and chat_template.h one folder up.
 *
 * Place: a static library built from this folder by its `build`, which tools/install calls; Bazel sees it as
 * //frontend/prompt/text/rust.
 * Truth: calls return 0, or what absl::StatusCode calls the error, and give its text to `error`. Nothing is written
 * elsewhere after an error, except pieces already given. A panic in the library is an error like others (13, internal).
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
typedef struct kvatlas_template kvatlas_template;

/* `json`: a tokenizer.json. `options`: a JSON object with any of
 *   "added_tokens": an array as in tokenizer.json, without ids: added as Python's `add_tokens` does. */
int kvatlas_tokenizer_new(kvatlas_text_view json, kvatlas_text_view options,
                          kvatlas_tokenizer** out, kvatlas_text_sink error);
void kvatlas_tokenizer_free(kvatlas_tokenizer* tokenizer);

/* What was loaded, as a JSON object. */
int kvatlas_tokenizer_describe(const kvatlas_tokenizer* tokenizer, kvatlas_text_sink out,
                               kvatlas_text_sink error);

/* Takes the tokens of one piece of the text: of the bytes from the end of the piece before to `end`. */
typedef void (*kvatlas_tokenizer_piece)(void* to, size_t end, const uint32_t* tokens, size_t count);

/* The tokens of `text`, without those that a post-processor puts around it, in pieces that are cut where that changes no
 * token; no piece but the last is shorter than `piece_bytes_min`. Text that follows such a cut can later be
 * tokenized alone, with `continues` not 0. With `piece_bytes_min` SIZE_MAX the text is one piece and the crate `tokenizers` alone
 * encodes it: what the encoder of this folder is compared with. */
int kvatlas_tokenizer_encode(const kvatlas_tokenizer* tokenizer, kvatlas_text_view text,
                             int continues, size_t piece_bytes_min, void* to,
                             kvatlas_tokenizer_piece piece, kvatlas_text_sink error);

/* `source`: a Jinja template as Hugging Face's tokenizers have them. */
int kvatlas_template_new(kvatlas_text_view source, kvatlas_template** out, kvatlas_text_sink error);
void kvatlas_template_free(kvatlas_template* chat_template);

/* `variables`: a JSON object. `now`: seconds since 1970, for templates that print a date (in the machine's time zone). */
int kvatlas_template_render(const kvatlas_template* chat_template, kvatlas_text_view variables,
                            int64_t now, kvatlas_text_sink out, kvatlas_text_sink error);

#ifdef __cplusplus
}
#endif

#endif /* KVATLAS_FRONTEND_PROMPT_TEXT_RUST_KVATLAS_TEXT_H_ */
