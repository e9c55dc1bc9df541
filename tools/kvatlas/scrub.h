// Removes prompts, tokens, hashes of them, and secrets from text and JSON of services, before it
// leaves the operator's machines.
//
// Services say none of these in what a bundle collects; this is the second lock, for log lines and
// reasons in words.
//
//   passwords in URLs, "salt=…", values behind password, secret, token, api_key, authorization, cache_salt    ***
//   lists and texts behind tokens, hashes, prompt, messages, content, input                                  ***
//   16 or more hexadecimal digits, 17 or more decimal ones                                                   <number>
//
// *Truth*: rather too much is left out than too little. Epochs (nanoseconds of a process's start)
// stay where their field is named so.
// *Threads*: functions without state. *Bounds*: a line is cut at `kScrubbedLineBytesMax`.

#ifndef KVATLAS_TOOLS_KVATLAS_SCRUB_H_
#define KVATLAS_TOOLS_KVATLAS_SCRUB_H_

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace kvatlas {

inline constexpr size_t kScrubbedLineBytesMax = 4096;

std::string ScrubbedText(std::string_view text);
// Scrubs every text in it, and every field with one of these names.
void Scrub(nlohmann::ordered_json* json);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_KVATLAS_SCRUB_H_
