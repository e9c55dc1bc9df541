#include "tests/interop/recording.h"

#include <zlib.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace kvatlas {
namespace {

constexpr std::string_view kMagic = "kvatlas recording 2\n";
// Without classes, and with one number per stream.
constexpr std::string_view kEarlierMagic = "kvatlas recording 1\n";
static_assert(kMagic.size() == kEarlierMagic.size());
constexpr uint32_t kNone = 0xFFFFFFFF;

absl::StatusOr<std::string> Inflate(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return absl::NotFoundError(path);
  std::string bytes;
  char buffer[1 << 16];
  int got;
  while ((got = gzread(file, buffer, sizeof(buffer))) > 0) bytes.append(buffer, got);
  gzclose(file);
  if (got < 0) return absl::DataLossError(path + ": not gzip");
  return bytes;
}

// Takes values off the front; after the end everything is empty and `ok` is false.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  bool ok() const { return ok_; }
  bool at_end() const { return rest_.empty(); }

  std::string_view Take(size_t size) {
    if (size > rest_.size()) {
      ok_ = false;
      rest_ = {};
      return {};
    }
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  uint64_t Number(size_t size) {
    uint64_t value = 0;
    int shift = 0;
    for (const char byte : Take(size)) {
      value |= uint64_t{static_cast<unsigned char>(byte)} << shift;
      shift += 8;
    }
    return value;
  }
  uint32_t U32() { return static_cast<uint32_t>(Number(4)); }
  std::string Text() { return std::string(Take(U32())); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

// Full attention first.
bool ReadLayout(Reader* in, Recording::Stream* stream) {
  stream->layout.main.block_size = stream->block_size;
  const uint32_t classes = in->U32();
  for (uint32_t i = 0; i < classes && in->ok(); ++i) {
    const uint32_t kind = in->U32();
    if (kind >= kCacheKinds) return false;
    CacheClass read = {.kind = static_cast<CacheKind>(kind), .block_size = in->U32()};
    read.window_tokens = in->U32();
    read.drops_last = in->U32() != 0;
    // The engine counts the next token in.
    if (read.kind == CacheKind::kWindow && read.window_tokens > 0) --read.window_tokens;
    if (i == 0) stream->layout.has_main = read.kind == CacheKind::kFull;
    if (i == 0 && stream->layout.has_main) {
      stream->layout.main = read;
    } else {
      stream->layout.sides.push_back(read);
    }
  }
  return in->ok();
}

bool ReadQuestion(Reader* in, bool earlier, Recording* recording) {
  Recording::Question question;
  question.lora_name = in->Text();
  question.cache_salt = in->Text();
  const uint32_t begins_with = in->U32();
  const uint32_t shared = in->U32();
  if (begins_with != kNone) {
    if (begins_with >= recording->questions.size()) return false;
    const std::vector<TokenId>& tokens = recording->questions[begins_with].tokens;
    if (shared > tokens.size()) return false;
    question.tokens.assign(tokens.begin(), tokens.begin() + shared);
  }
  for (uint32_t more = in->U32(); more > 0 && in->ok(); --more) {
    question.tokens.push_back(in->U32());
  }
  for (size_t i = 0; i < recording->streams.size(); ++i) {
    question.depths.push_back(in->U32());
    question.held.push_back(earlier ? question.depths.back() : in->U32());
  }
  recording->questions.push_back(std::move(question));
  return in->ok();
}

bool Read(Reader* in, Recording* recording) {
  const std::string_view magic = in->Take(kMagic.size());
  const bool earlier = magic == kEarlierMagic;
  if (magic != kMagic && !earlier) return false;
  recording->about = in->Text();
  for (uint32_t left = in->U32(); left > 0 && in->ok(); --left) {
    Recording::Stream stream;
    stream.instance = in->Text();
    stream.rank = in->U32();
    stream.block_size = in->U32();
    stream.live_from = in->U32();
    stream.layout.main.block_size = stream.block_size;
    if (!earlier && !ReadLayout(in, &stream)) return false;
    recording->streams.push_back(std::move(stream));
  }
  for (uint32_t left = in->U32(); left > 0 && in->ok(); --left) {
    Recording::Frame frame;
    frame.stream = in->U32();
    frame.topic = in->Text();
    frame.number = in->Number(8);
    frame.payload = in->Text();
    if (frame.stream >= recording->streams.size()) return false;
    recording->frames.push_back(std::move(frame));
  }
  for (uint32_t left = in->U32(); left > 0; --left) {
    if (!ReadQuestion(in, earlier, recording)) return false;
  }
  return in->ok() && in->at_end();
}

}  // namespace

absl::StatusOr<Recording> ReadRecording(const std::string& path) {
  absl::StatusOr<std::string> bytes = Inflate(path);
  if (!bytes.ok()) return bytes.status();
  Reader in(*bytes);
  Recording recording;
  if (!Read(&in, &recording)) return absl::DataLossError(path + ": not a whole recording");
  return recording;
}

Unsaid UnsaidOf(const Recording::Stream& stream) {
  Unsaid unsaid;
  std::vector<CacheClass> classes = stream.layout.sides;
  if (stream.layout.has_main) classes.insert(classes.begin(), stream.layout.main);
  size_t dropping = 0;
  for (size_t group = 0; group < classes.size(); ++group) {
    if (classes[group].kind == CacheKind::kChunk)
      unsaid.chunk_tokens = classes[group].window_tokens;
    if (!classes[group].drops_last) continue;
    unsaid.eagle_drop += (dropping++ == 0 ? "" : ",") + std::to_string(group);
  }
  if (dropping == classes.size()) unsaid.eagle_drop = "all";
  return unsaid;
}

}  // namespace kvatlas
