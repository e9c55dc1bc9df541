// The beginning of a prompt with images, audio or video, where nothing tells which tokens these
// become. A mark in the place of each message with media gives a prompt of text; its tokens in
// front of the first mark are the prompt's.
//
//   messages   system │ user: text │ assistant: text │ user: [text, image] │ …
//   marked     system │ user: text │ assistant: text │ user: "7"           │ …
//   tokens     ╰────────── equal for "7" and "Q", but for the last ───────╯
//
// The message's own text is marked too: engines put what stands for an item in front of it where
// the template takes strings (vLLM renderers/chat_utils). Messages behind it stay, since templates
// look at the user's last one.
//
// *Truth*: a beginning without its last token, which may have grown together with what follows. A
// turn whose role depends on its parts may begin in another way: then the last block of the
// beginning is none that an engine has.
// *Threads*: pure functions. *Cost*: a pass over the body, and a copy.

#ifndef KVATLAS_FRONTEND_PROMPT_MEDIA_MARKS_H_
#define KVATLAS_FRONTEND_PROMPT_MEDIA_MARKS_H_

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "indexer/base/hash.h"

namespace kvatlas {

// Two texts that begin unlike each other.
inline constexpr std::array kMediaMarks = {"7", "Q"};

struct MarkedPrompt {
  BodyPrompt prompt;
  std::string media;  // "image_url", the first kind
};

// NOT_FOUND: the request has no media. UNIMPLEMENTED: they stand in a place that is not known.
// INVALID_ARGUMENT: it is not JSON.
absl::StatusOr<MarkedPrompt> WithMarks(const BodyPrompt& prompt, const std::string& mark);

// The tokens in front of the marks, from those of the two marked prompts; empty: there are none.
std::vector<TokenId> BeforeMarks(const std::vector<TokenId>& one,
                                 const std::vector<TokenId>& other);

// "image_url": the first kind of image, audio, video or document that the messages have; empty:
// they are text.
std::string_view MediaIn(std::string_view messages);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_MEDIA_MARKS_H_
