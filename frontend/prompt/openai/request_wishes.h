// What does the body of a request say of the engine that must take it, and of how its usage is to be read?
//
// *Truth*: of the top level, as vLLM 0.33.0 and SGLang 0.5.23 read it; what is of another kind says nothing, and of a body that is no
// JSON nothing is known.
//   stored       responses, items and conversations that the engine has: `previous_response_id`, `conversation`, items of the type
//                `item_reference`
//   rank         SGLang's `routed_dp_rank`, or its older name `data_parallel_rank` (openai/protocol.py, engine.py)
//   one_prompt   one prompt and one choice: `usage` says then of the prompt what a prediction does. vLLM's of a list of prompts has the
//                sum of the tokens and the last one's cached ones; of `n` choices the second finds the first one's blocks.
// *Threads*: pure functions; each thread keeps a parser. *Cost*: a search for the names; a body that has one is parsed by simdjson.

#ifndef KVATLAS_FRONTEND_PROMPT_OPENAI_REQUEST_WISHES_H_
#define KVATLAS_FRONTEND_PROMPT_OPENAI_REQUEST_WISHES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvatlas {

struct RequestWishes {
  std::vector<std::string> stored;  // ids, the response's first
  std::optional<uint32_t> rank;
  bool one_prompt = true;
};

RequestWishes ReadWishes(std::string_view body);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_OPENAI_REQUEST_WISHES_H_
