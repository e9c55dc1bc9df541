// `WithMarks` rewrites a body: a text in the place of each message content that has media.
// `BeforeMarks` compares the tokens of two such bodies. `MediaIn` decides what counts as media, by
// a search for words in the JSON text, without parsing it.

#include "frontend/prompt/media_marks.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "frontend/prompt/json_fields.h"

namespace kvatlas {
namespace {

// Without JSON's white space at the end.
std::string_view WithoutSpaceBehind(std::string_view text) {
  return text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
}

// The fields that hold what a message says: `content`, and `output` of the results of calls in
// /v1/responses.
bool IsContent(std::string_view name) { return name == "content" || name == "output"; }

// The message with the mark as its content. UNIMPLEMENTED: media are in another field, and where
// the template prints that is not known.
absl::StatusOr<std::string> Marked(std::string_view message, const std::string& mark) {
  JsonText text(message);
  absl::StatusOr<JsonFields> fields = text.AsFields();
  if (!fields.ok()) return fields.status();
  std::string made = "{";
  bool marked = false;
  for (const auto& [name, raw] : *fields) {
    const bool has_media = IsContent(name) && !MediaIn(raw).empty();
    AppendField(name, has_media ? Quoted(mark) : std::string(raw), &made);
    marked = marked || has_media;
  }
  if (!marked)
    return absl::UnimplementedError(absl::StrCat(std::string(MediaIn(message)),
                                                 " stands elsewhere than in a message's content"));
  return made + "}";
}

}  // namespace

std::string_view MediaIn(std::string_view messages) {
  // Kinds of parts, and keys that tell the kind of a part without a type (vLLM
  // renderers/chat_utils, SGLang openai/protocol.py). A string of the JSON text cannot match:
  // quotation marks in it are escaped.
  constexpr std::array<std::string_view, 9> kKinds = {
      "\"image_url\"", "\"input_image\"",  "\"image_embeds\"", "\"image_pil\"",  "\"audio_url\"",
      "\"video_url\"", "\"audio_embeds\"", "\"input_audio\"",  "\"input_video\""};
  for (const std::string_view kind : kKinds) {
    if (messages.find(kind) != std::string_view::npos) return kind.substr(1, kind.size() - 2);
  }
  // These words may also be keys or values of something else: they count only as the value of
  // "type".
  for (const std::string_view kind : {"\"image\"", "\"audio\"", "\"video\"", "\"document\""}) {
    for (size_t at = messages.find(kind); at != std::string_view::npos;
         at = messages.find(kind, at + 1)) {
      std::string_view before = WithoutSpaceBehind(messages.substr(0, at));
      if (!before.ends_with(':')) continue;
      before = WithoutSpaceBehind(before.substr(0, before.size() - 1));
      if (before.ends_with("\"type\"")) return kind.substr(1, kind.size() - 2);
    }
  }
  return {};
}

// Rewrites the list of messages item by item; all other fields stay as they are written.
absl::StatusOr<MarkedPrompt> WithMarks(const BodyPrompt& prompt, const std::string& mark) {
  JsonText body(*prompt.body);
  absl::StatusOr<JsonFields> fields = body.AsFields();
  if (!fields.ok()) return fields.status();
  const std::string_view list = prompt.path == RequestPath::kResponses ? "input" : "messages";
  const std::string_view messages = GivenIn(*fields, list);
  MarkedPrompt made{.prompt = prompt, .media = std::string(MediaIn(messages))};
  if (made.media.empty()) return absl::NotFoundError("there are no images, audio or video");
  JsonText array(messages);
  absl::StatusOr<std::vector<std::string_view>> items = array.AsItems();
  if (!items.ok()) return items.status();
  std::string marked = "[";
  for (const std::string_view item : *items) {
    if (marked.size() > 1) marked += ',';
    if (MediaIn(item).empty()) {
      marked += item;
      continue;
    }
    absl::StatusOr<std::string> message = Marked(item, mark);
    if (!message.ok()) return message.status();
    marked += *message;
  }
  marked += ']';
  std::string text = "{";
  for (const auto& [name, raw] : *fields)
    AppendField(name, name == list ? std::string_view(marked) : raw, &text);
  made.prompt.body = std::make_shared<const std::string>(text + "}");
  return made;
}

// Equal lists have no marks in them: then nothing tells where the media stood, and the result is
// empty. The last equal token is dropped, as it may be merged with what follows in the real prompt.
std::vector<TokenId> BeforeMarks(const std::vector<TokenId>& one,
                                 const std::vector<TokenId>& other) {
  const auto [end, at] = std::mismatch(one.begin(), one.end(), other.begin(), other.end());
  if (end == one.begin() || (end == one.end() && at == other.end())) return {};
  return {one.begin(), std::prev(end)};
}

}  // namespace kvatlas
