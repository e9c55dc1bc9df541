/* How does an engine that is not written in C++ tell the world which blocks it has? `publisher.h` as C: what it says of
 * the machine (the bounded queue, the publisher's own thread, replicas, snapshots, copies) holds here, word for word.
 *
 *   engine ─▶ kvatlas_publisher_stored, _removed, _publish … ─▶ a copy, a lock ─▶ publisher's thread ─▶ leaves, ZeroMQ
 *
 * Threads: any thread may call everything, at once too, but for `_destroy`, which comes last and alone. Nothing of an
 *   argument is kept after a call returns. No call waits for a network, but `_wait_acknowledged`, `_stop` and `_destroy`.
 * Cost: a lock and a copy; well below two microseconds for 32 blocks of 16 tokens, whatever the network does.
 * Bounds: `queue_bytes_max`; when it is full the caller works off as much as it adds. Nothing is dropped.
 * Errors: a call returns a `KVATLAS_…` code, `KVATLAS_OK` being 0. Texts go into the caller's buffer, cut to its size and
 *   always ended by a NUL; a NULL buffer is allowed. No C++ type, no exception and no signal leaves the library. It has no
 *   state beside its handles, sets no handlers, and its threads block all signals.
 * Fork: a child has none of its parent's threads. There every call with a handle of the parent's returns
 *   `KVATLAS_FAILED_PRECONDITION` and touches nothing; `_destroy` there frees nothing. The parent goes on as if nothing had
 *   happened. A child may create publishers of its own if the parent had never created one before the fork; else
 *   `_create` refuses there (gRPC cannot start twice in one image): fork first, or exec.
 * Versions: structs begin with `struct_size`, which their `_init` fills in; later versions add fields at the end. A program
 *   built with an older header runs with a newer library of the same `KVATLAS_PUBLISHER_ABI`, whose number the library's
 *   file name ends in.
 * Lifetime: the library is never unloaded (it has threads), also when a handle was loaded with dlopen.
 *
 * Example (`example.c` has all of it):
 *   kvatlas_publisher_options options;
 *   kvatlas_publisher_options_init(&options, sizeof(options));
 *   options.leaves = (const char*[]){"127.0.0.1:7410"};
 *   options.leaves_count = 1;
 *   options.worker = "worker-3";
 *   options.model = "llama-70b";
 *   kvatlas_publisher* publisher = NULL;
 *   char error[256];
 *   if (kvatlas_publisher_create(&options, &publisher, error, sizeof(error)) != KVATLAS_OK) return error;
 *   kvatlas_publisher_stored(publisher, KVATLAS_TIER_DEVICE, blocks, 2, NULL, tokens, 32, NULL);
 *
 * Link with `pkg-config --cflags --libs kvatlas_publisher`.
 */

#ifndef KVATLAS_PUBLISHER_KVATLAS_PUBLISHER_H_
#define KVATLAS_PUBLISHER_KVATLAS_PUBLISHER_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVATLAS_PUBLISHER_ABI 1u
#define KVATLAS_API __attribute__((visibility("default")))

/* gRPC's numbers; `kvatlas_frontend.h` has the same. */
#ifndef KVATLAS_CODES
#define KVATLAS_CODES
enum {
  KVATLAS_OK = 0,
  KVATLAS_INVALID_ARGUMENT = 3, /* what no correct caller would say; nothing happened */
  KVATLAS_DEADLINE_EXCEEDED = 4,
  KVATLAS_NOT_FOUND = 5,
  KVATLAS_RESOURCE_EXHAUSTED = 8,  /* no memory */
  KVATLAS_FAILED_PRECONDITION = 9, /* stopped, or in a forked child */
  KVATLAS_INTERNAL = 13,
  KVATLAS_UNAVAILABLE = 14 /* a ZeroMQ endpoint cannot be bound */
};
#endif

/* A block may be in several tiers, and they evict independently. A set of tiers has bit 1 << tier for each. */
enum {
  KVATLAS_TIER_DEVICE = 0,
  KVATLAS_TIER_HOST = 1,
  KVATLAS_TIER_DISK = 2,
  KVATLAS_TIER_EXTERNAL = 3
};
#define KVATLAS_TIERS_ALL 15u

enum { KVATLAS_ZMQ_AUTO = 0, KVATLAS_ZMQ_BIND = 1, KVATLAS_ZMQ_CONNECT = 2 };

typedef struct kvatlas_publisher kvatlas_publisher;

typedef struct kvatlas_label {
  const char* name;
  const char* value;
} kvatlas_label;

/* What a group of layers of a hybrid model caches. */
enum {
  KVATLAS_GROUP_FULL = 0,
  KVATLAS_GROUP_WINDOW = 1,
  KVATLAS_GROUP_STATE = 2,
  KVATLAS_GROUP_CHUNK = 3
};

/* A group whose blocks the engine stores and evicts by themselves. */
typedef struct kvatlas_group {
  size_t struct_size;  /* sizeof(kvatlas_group) */
  uint32_t number;     /* the engine's own */
  uint32_t kind;       /* KVATLAS_GROUP_… */
  uint32_t block_size; /* tokens; 0: the options' */
  uint32_t
      window_tokens; /* of a sliding window, the next token counted in, as vLLM counts; else 0 */
} kvatlas_group;

/* What separates prompts of equal tokens. NULL or "": none. */
typedef struct kvatlas_namespace {
  const char* lora_name;
  const char* cache_salt;
} kvatlas_namespace;

/* Every field has its default after `_init`; worker and model must be set. Copied by `_create`. */
typedef struct kvatlas_publisher_options {
  size_t struct_size;
  const char* const*
      leaves; /* HOST:PORT of every replica of the cell's leaf, or where they are found, whenever they come and go:
                          dns:HOST:PORT, redis://HOST:PORT (then `cell` says whose); none: no leaf is told */
  size_t leaves_count; /* at most 16 */
  const char* worker;
  const char* model;
  const char* tenant;
  uint32_t dp_rank;         /* data-parallel rank of this engine in the worker */
  uint32_t block_size;      /* 16 tokens */
  uint64_t hash_seed;       /* 1337: the hash contract's S */
  kvatlas_namespace within; /* of calls that name no namespace */
  const kvatlas_label* labels;
  size_t labels_count; /* at most 32 */

  size_t batch_blocks;    /* 64 */
  uint64_t batch_age_us;  /* 2000 */
  size_t queue_bytes_max; /* 32 MiB */
  uint64_t window_batches;
  uint64_t digest_every_ms;
  uint64_t heartbeat_every_ms;

  /* The same calls as vLLM's KV events, for consumers that are not ours (`zmq_publisher.h`). NULL: none. */
  const char* zmq_endpoint;
  const char* zmq_replay_endpoint;
  const char* zmq_topic;
  int32_t zmq_attach;
  int32_t zmq_legacy_events; /* not 0: tuples, for consumers of before mid-2026 */
  int32_t zmq_replay_without_topic;

  /* Through a log in Redis, beside the leaves or instead of them (`redis_url.h` says what a URL may be). NULL: none. */
  const char* redis_url;
  const char* redis_cell; /* the leaf's; NULL: `cell` */
  uint32_t redis_shards;  /* 1; the same for everybody who uses the cell */

  const char* cell; /* whose leaves are found by leases in Redis */

  /* Of `_publish` and hybrid models, what no event says. */
  const char*
      eagle_drop; /* a speculating engine's (EAGLE, MTP) attention groups whose last matched block is not reused: "all",
                             or their numbers, "1,2"; NULL: none */
  uint32_t chunk_tokens;  /* of chunked local attention: of a chunk; 0: none, or unknown */
  uint32_t window_tokens; /* of SGLang's sliding window; 0 likewise */

  /* TLS to the leaves: paths of PEM files, watched. `tls_ca` checks the leaves' certificates; NULL: no TLS. A certificate of
     identity worker/CELL/NAME with its key (mode 0640 or less), where leaves have a policy. */
  const char* tls_ca;
  const char* tls_cert;
  const char* tls_key;

  /* Of `_publish`, not 0: the model has windows or recurrent states beside full attention, of which its events may not tell
     (SGLang to 0.5.23). Until they do, leaves answer what full attention holds, as degraded. */
  int32_t hybrid;
} kvatlas_publisher_options;

/* `struct_size` is sizeof(kvatlas_publisher_options) where the caller was compiled. */
KVATLAS_API void kvatlas_publisher_options_init(kvatlas_publisher_options* options,
                                                size_t struct_size);

/* "0.7.0"; the number of the interface that the library has; "INVALID_ARGUMENT". */
KVATLAS_API const char* kvatlas_publisher_version(void);
KVATLAS_API uint32_t kvatlas_publisher_abi(void);
KVATLAS_API const char* kvatlas_code_name(int32_t code);

/* Leaves need not be reachable. On failure `*publisher` is NULL and `error` says why. INVALID_ARGUMENT: an option.
 * UNAVAILABLE: a ZeroMQ endpoint. FAILED_PRECONDITION: see Fork. */
KVATLAS_API int32_t kvatlas_publisher_create(const kvatlas_publisher_options* options,
                                             kvatlas_publisher** publisher, char* error,
                                             size_t error_size);

/* Stops without a goodbye, so that a restart within the lease goes unnoticed, and frees. NULL does nothing. */
KVATLAS_API void kvatlas_publisher_destroy(kvatlas_publisher* publisher);

/* ---- What the engine says. INVALID_ARGUMENT: also a tier that does not exist, or counts that do not fit: `_last_error` has the
 * words, such as "2 blocks of 16 tokens need 32 token ids; got 20". ---- */

/* A run of consecutive blocks under the engine's own names is now in `tier`, after `*parent` (NULL: at the start of a
 * sequence). `tokens_count` is blocks_count * block_size; or 0: the blocks are held in another tier already, in any order,
 * and `parent` is not looked at. `within` NULL: the options'. */
KVATLAS_API int32_t kvatlas_publisher_stored(kvatlas_publisher* publisher, int32_t tier,
                                             const uint64_t* blocks, size_t blocks_count,
                                             const uint64_t* parent, const uint32_t* tokens,
                                             size_t tokens_count, const kvatlas_namespace* within);
/* One copy less of each. */
KVATLAS_API int32_t kvatlas_publisher_removed(kvatlas_publisher* publisher, int32_t tier,
                                              const uint64_t* blocks, size_t blocks_count);

/* The same for engines whose names are digests: `blocks` has `name_bytes` (1 to 256) for each, one after the other, and
 * `parent` as many. Names are told apart by their XXH3-64, as engines that publish 64 bits of a digest tell them apart: of
 * ten million blocks, two are confused with a probability of 3 in a million. */
KVATLAS_API int32_t kvatlas_publisher_stored_bytes(kvatlas_publisher* publisher, int32_t tier,
                                                   const void* blocks, size_t name_bytes,
                                                   size_t blocks_count, const void* parent,
                                                   const uint32_t* tokens, size_t tokens_count,
                                                   const kvatlas_namespace* within);
KVATLAS_API int32_t kvatlas_publisher_removed_bytes(kvatlas_publisher* publisher, int32_t tier,
                                                    const void* blocks, size_t name_bytes,
                                                    size_t blocks_count);

/* The same for engines that have the contract's sequence hashes; `parent` is 0 at position 0 and nowhere else. Blocks
 * stored with these are removed with these. */
KVATLAS_API int32_t kvatlas_publisher_stored_hashed(kvatlas_publisher* publisher, int32_t tier,
                                                    uint32_t position, uint64_t parent,
                                                    const uint64_t* blocks, size_t blocks_count);
KVATLAS_API int32_t kvatlas_publisher_removed_hashed(kvatlas_publisher* publisher, int32_t tier,
                                                     const uint64_t* blocks, size_t blocks_count);

/* For hybrid models: blocks of one group under the engine's own names, those of the group with full attention included
 * (`Publisher::StoredInGroup` in `publisher.h`). `name_bytes` 0: names are `uint64_t`; else as in `_stored_bytes`. `tokens_count` is
 * blocks_count * the group's block size. The very first call is of a group with full attention, where there is one. Where the options
 * have an adapter or a salt, `within` is NULL or has one too. For engines that say everything so, or by `_publish`: the calls above are
 * refused after it, and it after them. */
KVATLAS_API int32_t kvatlas_publisher_stored_in_group(kvatlas_publisher* publisher,
                                                      const kvatlas_group* group, int32_t tier,
                                                      const void* blocks, size_t name_bytes,
                                                      size_t blocks_count, const void* parent,
                                                      const uint32_t* tokens, size_t tokens_count,
                                                      const kvatlas_namespace* within);
KVATLAS_API int32_t kvatlas_publisher_removed_in_group(kvatlas_publisher* publisher, uint32_t group,
                                                       int32_t tier, const void* blocks,
                                                       size_t name_bytes, size_t blocks_count);

/* Nothing is left in these tiers, however many copies there were. */
KVATLAS_API int32_t kvatlas_publisher_cleared(kvatlas_publisher* publisher, uint32_t tiers);

/* A batch of events in the engine's own words: the msgpack that vLLM's and SGLang's publishers send, in any of their
 * forms. For engines that say everything so (or by groups): the other calls above, but for `_cleared` of all tiers, are refused
 * after it, and it after them (INVALID_ARGUMENT). A batch that cannot be read is counted (`engine_unreadable`). */
KVATLAS_API int32_t kvatlas_publisher_publish(kvatlas_publisher* publisher,
                                              const void* engine_batch, size_t size);

typedef struct kvatlas_load {
  size_t struct_size; /* sizeof(kvatlas_load) */
  uint32_t running_requests;
  uint32_t waiting_requests;
  uint64_t used_blocks;
  uint64_t free_blocks;
  uint64_t waiting_prefill_blocks; /* of prompts, still to be computed */
  double tokens_per_s;             /* a number from 0 */
} kvatlas_load;

/* How busy the engine is; the latest one travels with the next batch. */
KVATLAS_API int32_t kvatlas_publisher_set_load(kvatlas_publisher* publisher,
                                               const kvatlas_load* load);

/* What waits is sent at once. Does not wait. */
KVATLAS_API int32_t kvatlas_publisher_flush(kvatlas_publisher* publisher);

/* Waits until everything said before is acknowledged by every replica that is connected, and by at least one (by none,
 * when there are no leaves). DEADLINE_EXCEEDED: not yet. */
KVATLAS_API int32_t kvatlas_publisher_wait_acknowledged(kvatlas_publisher* publisher,
                                                        uint64_t timeout_ms);

/* Works off the queue, sends for at most `flush_for_ms` what is due, and ends. With `goodbye` not 0 the leaves forget the
 * worker at once. Idempotent; what the engine says after it is refused. */
KVATLAS_API int32_t kvatlas_publisher_stop(kvatlas_publisher* publisher, int32_t goodbye,
                                           uint64_t flush_for_ms);

/* ---- How it goes ---- */

/* Meanings: `PublisherStats` in `publisher.h`. The caller sets `struct_size`; what it has room for is filled in. */
typedef struct kvatlas_publisher_stats {
  size_t struct_size;
  uint64_t blocks_stored;
  uint64_t blocks_removed;
  uint64_t clears;
  uint64_t blocks_stored_passed;
  uint64_t blocks_removed_passed;
  uint64_t batches;
  uint64_t blocks_held;
  uint64_t unknown_parents;
  uint64_t unknown_removed;
  uint64_t renamed;
  uint64_t invalid_calls;
  uint64_t engine_batches;
  uint64_t engine_unreadable;
  uint64_t engine_refused;
  uint64_t engine_parked;
  uint64_t inline_records;
  uint64_t queue_bytes;
  uint64_t replicas;
} kvatlas_publisher_stats;

KVATLAS_API int32_t kvatlas_publisher_get_stats(kvatlas_publisher* publisher,
                                                kvatlas_publisher_stats* stats);

/* What went wrong last: why a call was refused or something that the engine said was dropped; or, while it lasts, why a leaf is not
 * told: a code, and the text; OK and "" when there is nothing to say. */
KVATLAS_API int32_t kvatlas_publisher_last_error(kvatlas_publisher* publisher, char* text,
                                                 size_t text_size);

typedef struct kvatlas_replica_stats {
  size_t struct_size;
  int32_t connected;
  int32_t welcomed;
  int32_t at_rest; /* everything said so far is acknowledged */
  int32_t
      status; /* not OK: it is not told. UNAVAILABLE: not reached; INVALID_ARGUMENT: it refuses for good; else it refuses,
                      and is tried again */
  uint64_t last_number;
  uint64_t acknowledged;
  uint64_t bytes_sent;
  uint64_t snapshots_sent;
  uint64_t batches_dropped; /* the window was full: a snapshot is owed */
} kvatlas_replica_stats;

/* Of the leaf `replica`, 0 being the first in the options, the log in Redis the last; `text` gets the words of `status`. NOT_FOUND: no such leaf. */
KVATLAS_API int32_t kvatlas_publisher_get_replica(kvatlas_publisher* publisher, size_t replica,
                                                  kvatlas_replica_stats* stats, char* text,
                                                  size_t text_size);

/* Where ZeroMQ was bound, with the port that was taken. NOT_FOUND: nowhere. */
KVATLAS_API int32_t kvatlas_publisher_zmq_endpoint(kvatlas_publisher* publisher, char* text,
                                                   size_t text_size);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* KVATLAS_PUBLISHER_KVATLAS_PUBLISHER_H_ */
