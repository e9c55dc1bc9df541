/* Which worker should take this prompt, for gateways that are not written in C++? `frontend/router/frontend.h` as C: what it says of
 * the ladder when something is missing, of overlaps and of choices in flight holds here, word for word. A prompt is token ids, or
 * text and chats, of which tokenizers from files (`models`) make the very ids that the engine will see.
 *
 *   gateway ─▶ kvatlas_frontend_route ─▶ hierarchy, leaves ─▶ worker, receipt ─▶ gateway ─▶ kvatlas_frontend_report
 *
 * Threads: any thread may call everything, at once too, but for `_destroy`, which comes last and alone. Callbacks of
 *   `_route_async` run in the library's threads: they may call everything but `_route` and `_destroy`, and should be short. Nothing of an
 *   argument is kept after a call returns, but `context`.
 * Cost: hashing (100,000 tokens: 0.1 ms) in the caller's thread, then what the network takes. Of text and chats: JSON of a chat is
 *   read in the caller's thread, all else in `prompt_threads` of the library's.
 * Bounds: `routes_max` routes under way; beyond, RESOURCE_EXHAUSTED at once. Every route ends by its deadline, but that a prompt
 *   whose tokens are being made is not broken off. `prompts_max` prompts wait to be read; beyond, RESOURCE_EXHAUSTED at once.
 * Errors: a call returns a `KVATLAS_…` code, `KVATLAS_OK` being 0. Texts go into the caller's buffer, cut to its size and
 *   always ended by a NUL; a NULL buffer is allowed. No C++ type, no exception and no signal leaves the library. It has no
 *   state beside its handles, sets no handlers, and its threads block all signals.
 * Fork: a child has none of its parent's threads. There every call with a handle of the parent's returns
 *   `KVATLAS_FAILED_PRECONDITION` and touches nothing; `_destroy` there frees nothing. A child may create frontends of its own if
 *   the parent had never created one before the fork; else `_create` refuses there (gRPC cannot start twice in one image): fork
 *   first, or exec.
 * Versions: structs begin with `struct_size`, which their `_init` fills in; later versions add fields at the end. A program
 *   built with an older header runs with a newer library of the same `KVATLAS_FRONTEND_ABI`, whose number the library's
 *   file name ends in.
 * Beside others: a process that uses Debian's Protobuf library may have either this library or the publisher's, not both: they
 *   have messages in common, of which Protobuf takes one set (the publisher's Python wheel brings its own).
 * Lifetime: the library is never unloaded (it has threads), also when a handle was loaded with dlopen.
 *
 * Example (`example.c` has all of it):
 *   kvatlas_frontend_options options;
 *   kvatlas_frontend_options_init(&options, sizeof(options));
 *   options.hierarchy = "127.0.0.1:7420";
 *   kvatlas_frontend* frontend = NULL;
 *   char error[256];
 *   if (kvatlas_frontend_create(&options, &frontend, error, sizeof(error)) != KVATLAS_OK) return error;
 *   kvatlas_route* route = NULL;
 *   if (kvatlas_frontend_route(frontend, &request, &route, error, sizeof(error)) == KVATLAS_OK) send_to(kvatlas_route_worker(route));
 *   kvatlas_route_free(route);
 *
 * Link with `pkg-config --cflags --libs kvatlas_frontend`.
 */

#ifndef KVATLAS_FRONTEND_GATEWAY_C_KVATLAS_FRONTEND_H_
#define KVATLAS_FRONTEND_GATEWAY_C_KVATLAS_FRONTEND_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVATLAS_FRONTEND_ABI 1u
#define KVATLAS_API __attribute__((visibility("default")))

/* gRPC's numbers; `kvatlas_publisher.h` has the same. */
#ifndef KVATLAS_CODES
#define KVATLAS_CODES
enum {
  KVATLAS_OK = 0,
  KVATLAS_INVALID_ARGUMENT = 3, /* what no correct caller would say; nothing happened */
  KVATLAS_DEADLINE_EXCEEDED = 4,
  KVATLAS_NOT_FOUND = 5,
  KVATLAS_RESOURCE_EXHAUSTED = 8,  /* a bound was reached, or no memory */
  KVATLAS_FAILED_PRECONDITION = 9, /* stopped, or in a forked child */
  KVATLAS_INTERNAL = 13,
  KVATLAS_UNAVAILABLE = 14 /* not reachable */
};
#endif

typedef struct kvatlas_frontend kvatlas_frontend;
typedef struct kvatlas_route kvatlas_route;

/* Every field has its default after `_init`; a hierarchy or a leaf must be set. Copied by `_create`. Meanings: `FrontendOptions`. */
typedef struct kvatlas_frontend_options {
  size_t struct_size;
  const char* hierarchy;     /* HOST:PORT,… or NAME=HOST:PORT|HOST:PORT,…; NULL: none */
  const char* const* leaves; /* CELL=HOST:PORT */
  size_t leaves_count;       /* at most 4096 */
  uint32_t ask;              /* 2: leaves asked at once */
  uint32_t block_size;       /* 16 tokens, until the fleet says otherwise */
  uint64_t hash_seed;        /* 1337: the hash contract's S */
  uint64_t deadline_us;      /* 50000: of a route that names none */
  uint64_t in_flight_ttl_ms; /* 30000: how long a choice counts without a report */
  const char* zone;          /* cells labelled with another one are `zone_distance` away */
  double zone_distance;      /* 8 blocks of prefill */
  double prefill_weight;     /* 1 */
  double queue_weight;       /* 1 */
  double decode_weight;      /* 1 */
  double temperature;        /* 0: the cheapest */
  uint64_t seed;             /* of tie-breaks and of the temperature */
  uint32_t routes_max;       /* 16384 under way */
  const char*
      models; /* tokenizers: NAME=PATH,… with a folder, a file or an earlier name, or @FILE, as in the service's
                              `--models`; read by `_create`. NULL: none, so that only token ids are routed */
  uint32_t prompt_threads; /* 2 that make tokens of text and chats; at most 256 */
  uint32_t prompts_max;    /* 1024 that wait for one of these */
  const char*
      schedule; /* the waypoints that leaves report, as in their `--schedule`; NULL: the standard ones */
} kvatlas_frontend_options;

/* `struct_size` is sizeof(kvatlas_frontend_options) where the caller was compiled. */
KVATLAS_API void kvatlas_frontend_options_init(kvatlas_frontend_options* options,
                                               size_t struct_size);

/* "0.7.0"; the number of the interface that the library has; "INVALID_ARGUMENT". */
KVATLAS_API const char* kvatlas_frontend_version(void);
KVATLAS_API uint32_t kvatlas_frontend_abi(void);
KVATLAS_API const char* kvatlas_frontend_code_name(int32_t code);

/* No service needs to be reachable. On failure `*frontend` is NULL and `error` says why. INVALID_ARGUMENT: an option, or a model that
 * cannot be loaded. FAILED_PRECONDITION: see Fork. */
KVATLAS_API int32_t kvatlas_frontend_create(const kvatlas_frontend_options* options,
                                            kvatlas_frontend** frontend, char* error,
                                            size_t error_size);

/* Waits for the routes under way, at most until their deadlines, and frees. NULL does nothing. */
KVATLAS_API void kvatlas_frontend_destroy(kvatlas_frontend* frontend);

/* ---- Routes ---- */

/* One of `tokens`, `sequence_hashes`, `text`, `messages_json` and `body`. Other NULL texts are empty. Copied by the call. */
typedef struct kvatlas_route_request {
  size_t struct_size;
  const char* model;
  const char* tenant;
  const uint32_t* tokens;
  size_t tokens_count;
  const uint64_t* sequence_hashes;
  size_t sequence_hashes_count;
  const char* lora_name;
  const char* cache_salt;
  const char* session_id;
  const char* const* allowed_workers; /* names; none: all */
  size_t allowed_workers_count;       /* at most 4096 */
  uint32_t expected_output_tokens;    /* 0: not known */
  uint64_t deadline_us;               /* 0: the options', beside the time that tokens take */
  /* The prompt of a completion, as it is. */
  const char* text;
  size_t text_size; /* bytes */
  /* A conversation, as engines' chat endpoints take it. JSON, since templates print what is in it, in its order. */
  const char* messages_json;        /* an array of objects */
  const char* tools_json;           /* an array; NULL: none */
  const char* template_kwargs_json; /* an object; NULL: none */
  const char* chat_template;        /* NULL: the model's own */
  int32_t add_generation_prompt;    /* 1 */
  int32_t continue_final_message;   /* 0 */
  int32_t
      add_special_tokens; /* -1: as engines do, to a text and not to a chat, whose template writes them; 0: no; 1: yes */
  /* The body of POST /v1/chat/completions or, with `prompt` in place of `messages`, /v1/completions, as an engine gets it. It says
   * itself what `model`, `cache_salt` and `expected_output_tokens` say of other prompts. */
  const char* body;
  size_t body_size; /* bytes */
  int32_t
      return_tokens; /* not 0: the route has the prompt's ids, so that the engine need not make them again */
  uint32_t
      prompt_tokens; /* of the whole prompt, with `sequence_hashes`; 0: their blocks and no token more. The block of the last
                      * token is never promised: an engine always computes it */
} kvatlas_route_request;

KVATLAS_API void kvatlas_route_request_init(kvatlas_route_request* request, size_t struct_size);

/* Waits for the choice. On success `*route` is to be freed; on failure it is NULL and `error` says why. INVALID_ARGUMENT: no
 * prompt, two, or no model; a body or JSON that is none, text that is no UTF-8, messages that the template refuses. NOT_FOUND: no
 * tokenizer for the model, or those who answered know no worker of the model. RESOURCE_EXHAUSTED: too many blocks, routes or
 * prompts that wait, a text longer than its tokenizer takes, or every worker is over its thresholds. UNAVAILABLE: nothing that
 * would know of workers answered. */
KVATLAS_API int32_t kvatlas_frontend_route(kvatlas_frontend* frontend,
                                           const kvatlas_route_request* request,
                                           kvatlas_route** route, char* error, size_t error_size);

/* `route` is the callback's, to be freed by it or later; NULL unless `code` is KVATLAS_OK. `error` is valid during the call. */
typedef void (*kvatlas_route_callback)(void* context, int32_t code, const char* error,
                                       kvatlas_route* route);

/* Does not wait. KVATLAS_OK: the callback is called exactly once, possibly before this returns; anything else: never. */
KVATLAS_API int32_t kvatlas_frontend_route_async(kvatlas_frontend* frontend,
                                                 const kvatlas_route_request* request,
                                                 kvatlas_route_callback callback, void* context);

/* Valid until the route is freed. */
KVATLAS_API uint64_t kvatlas_route_decision_id(const kvatlas_route* route);
KVATLAS_API const char* kvatlas_route_worker(const kvatlas_route* route);
KVATLAS_API uint32_t
kvatlas_route_rank(const kvatlas_route* route); /* data-parallel, of the worker */
KVATLAS_API const char* kvatlas_route_cell(const kvatlas_route* route);
KVATLAS_API const char* kvatlas_route_url(
    const kvatlas_route* route); /* of its engine; "": not known */
KVATLAS_API uint32_t kvatlas_route_overlap_blocks(const kvatlas_route* route);

/* Who decodes, where that is another worker: it takes the request from the client, and has the worker above prefill it. NULL and 0
 * of a route to one worker. */
KVATLAS_API const char* kvatlas_route_decode_worker(const kvatlas_route* route);
KVATLAS_API uint32_t kvatlas_route_decode_rank(const kvatlas_route* route);
KVATLAS_API const char* kvatlas_route_decode_cell(const kvatlas_route* route);
KVATLAS_API const char* kvatlas_route_decode_url(const kvatlas_route* route); /* "": not known */

/* Of a prompt that was tokens, text or a chat. What made the tokens of the latter: "llama (tokenizer.json 5f0c…)", else "". The
 * tokens themselves if the request wanted them; NULL and `*count` 0 if not. */
KVATLAS_API uint64_t kvatlas_route_prompt_tokens(const kvatlas_route* route);
KVATLAS_API const char* kvatlas_route_tokenizer(const kvatlas_route* route);
KVATLAS_API const uint32_t* kvatlas_route_tokens(const kvatlas_route* route, size_t* count);

/* Why this worker: the answer of the service's `Route` (`frontend.proto`) as JSON. Made by the first call. Not by several
 * threads at once. NULL: no memory. */
KVATLAS_API const char* kvatlas_route_receipt_json(kvatlas_route* route);
KVATLAS_API void kvatlas_route_free(kvatlas_route* route); /* NULL does nothing */

/* ---- What became of it ---- */

typedef struct kvatlas_route_report {
  size_t struct_size;
  int32_t accepted; /* not 0: the worker's own load counts it from now on */
  int32_t finished;
  int32_t abandoned;     /* not sent there, or given up before it was taken */
  int32_t unreachable;   /* the worker did not take it, as one that is gone */
  int64_t cached_tokens; /* what the engine says it had; -1: not known */
  int64_t prompt_tokens; /* likewise */
  const char* error;     /* of a request that failed there; NULL: none */
  int32_t
      decode_unreachable; /* as `unreachable`, of the worker that decodes, which is the same unless the route names two */
} kvatlas_route_report;

KVATLAS_API void kvatlas_route_report_init(kvatlas_route_report* report, size_t struct_size);

/* Unknown ids are ignored. */
KVATLAS_API int32_t kvatlas_frontend_report(kvatlas_frontend* frontend, uint64_t decision_id,
                                            const kvatlas_route_report* report);

/* The caller sets `struct_size`; what it has room for is filled in. */
typedef struct kvatlas_frontend_stats {
  size_t struct_size;
  uint64_t routes;
  uint64_t failed;
  uint64_t fallbacks; /* of `routes`, those that went without the full path */
  uint64_t in_flight; /* choices not reported on */
  uint64_t cells;     /* remembered */
  uint64_t workers;
  uint64_t under_way; /* routes */
} kvatlas_frontend_stats;

KVATLAS_API int32_t kvatlas_frontend_get_stats(kvatlas_frontend* frontend,
                                               kvatlas_frontend_stats* stats);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* KVATLAS_FRONTEND_GATEWAY_C_KVATLAS_FRONTEND_H_ */
