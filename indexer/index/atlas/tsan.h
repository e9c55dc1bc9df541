// KVATLAS_THREAD_SANITIZER: 1 in builds with ThreadSanitizer, which does not know about words that
// are read two by two; else 0.

#ifndef KVATLAS_INDEXER_INDEX_ATLAS_TSAN_H_
#define KVATLAS_INDEXER_INDEX_ATLAS_TSAN_H_

#if defined(__SANITIZE_THREAD__)
#define KVATLAS_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define KVATLAS_THREAD_SANITIZER 1
#endif
#endif
#ifndef KVATLAS_THREAD_SANITIZER
#define KVATLAS_THREAD_SANITIZER 0
#endif

#endif  // KVATLAS_INDEXER_INDEX_ATLAS_TSAN_H_
