// A cache class as text for people: "main", "window:128", "window:all", "state", "chunk:8192".

#ifndef KVATLAS_INDEXER_BASE_CACHE_CLASS_TEXT_H_
#define KVATLAS_INDEXER_BASE_CACHE_CLASS_TEXT_H_

#include <string>

#include "indexer/base/cache_class.h"

namespace kvatlas {

std::string ToString(const CacheClass& of);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_BASE_CACHE_CLASS_TEXT_H_
