// Reads the usage, with the tokens that the engine had in its cache, out of an answer of an
// engine's API as it passes through, whole or as a stream of server-sent events.
//
//   chats, completions, vLLM's generate   usage: prompt_tokens, prompt_tokens_details.cached_tokens
//   Responses                             usage, response.usage: input_tokens, input_tokens_details.cached_tokens
//   Anthropic's messages                  usage, message.usage: input_tokens + cache_read_input_tokens + cache_creation_input_tokens,
//                                         of which cache_read_input_tokens are cached (vLLM's anthropic/serving.py,
//                                         _build_anthropic_usage; SGLang's, _anthropic_usage_from_openai)
//   SGLang's generate                     meta_info: prompt_tokens, cached_tokens
//
// *Truth*: the last value of each count: message_delta of a messages stream adds to message_start.
// A count that the answer does not have is empty: in a stream of chats engines send usage only on
// request (`stream_options`), and cached tokens only where they are configured to count them. An
// answer to several prompts (a list of SGLang's) has no usage.
// *Threads*: one at a time.
// *Cost*: a scan for line ends and for the words "usage" and "meta_info". JSON is parsed for lines
// that have "usage"; of a stream's lines with "meta_info", each of which has the answer so far, the
// last one alone.
// *Bounds*: `kUsageBytesMax` of an answer that is not a stream, and of one line of a stream; longer
// ones are skipped.
//
// Example:
//   UsageReader reader(content_type);
//   for (chunk : answer) reader.Add(chunk);
//   const std::optional<OpenAiUsage> usage = reader.Finish();

#ifndef KVATLAS_FRONTEND_PROMPT_OPENAI_USAGE_READER_H_
#define KVATLAS_FRONTEND_PROMPT_OPENAI_USAGE_READER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvatlas {

inline constexpr size_t kUsageBytesMax = 1 << 20;

struct OpenAiUsage {
  std::optional<uint32_t> prompt_tokens = {};
  std::optional<uint32_t> cached_tokens = {};
  std::optional<uint32_t> completion_tokens = {};
};

class UsageReader {
 public:
  // `content_type`: the header; anything but a stream of events is read as one JSON object.
  explicit UsageReader(std::string_view content_type);

  void Add(std::string_view chunk);
  // The usage that was read. Call it once, after the last `Add`.
  std::optional<OpenAiUsage> Finish();

  // The engine has begun to work: something came, in a stream an event other than those by which
  // `POST /v1/responses` says that the request was taken (vLLM's `responses/serving.py` and
  // SGLang's `serving_responses.py` send `response.created` and `response.in_progress` before they
  // look at the prompt).
  bool began() const { return began_; }

 private:
  void AddLines(std::string_view chunk);
  void ReadLine(std::string_view line);
  void ReadJson(std::string_view json);
  void Parse(std::string_view json, bool has_usage);

  const bool events_;
  bool began_ = false;
  bool taken_ = false;     // the event says only that
  std::string kept_;       // the answer so far, or of a stream the line so far
  bool too_long_ = false;  // likewise
  std::string meta_info_;  // the last line of a stream that has it
  std::optional<OpenAiUsage> usage_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_OPENAI_USAGE_READER_H_
