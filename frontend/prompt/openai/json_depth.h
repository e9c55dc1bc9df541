// Tells JSON that is nested deeper than any real request. A parser that does not recurse reads a
// megabyte of brackets; copying and printing the result recurses, and overflows the stack.
//
// *Cost*: one pass over the text. *Truth*: for JSON alone; the result for other text means nothing,
// and parsing refuses it.

#ifndef KVATLAS_FRONTEND_PROMPT_OPENAI_JSON_DEPTH_H_
#define KVATLAS_FRONTEND_PROMPT_OPENAI_JSON_DEPTH_H_

#include <cstddef>
#include <string_view>

namespace kvatlas {

inline constexpr int kJsonDepthMax = 100;

inline bool IsNestedTooDeep(std::string_view json) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      i += c == '\\' ? 1 : 0;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kJsonDepthMax) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_OPENAI_JSON_DEPTH_H_
