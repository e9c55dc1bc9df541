#include "indexer/service/resp.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace kvatlas {
namespace {

constexpr std::string_view kEnd = "\r\n";
constexpr size_t kTextLineBytesMax = 16 << 10;  // of statuses and errors, with type and end
constexpr size_t kNumberLineBytesMax = 32;
constexpr std::string_view kTypes = "+-:$*";
constexpr std::string_view kResp3Types = "_#,(!=%~>|";

absl::Status NotResp(const std::string& why) {
  return absl::InvalidArgumentError("not RESP2: " + why);
}

absl::Status BadType(char type) {
  if (kResp3Types.find(type) != std::string_view::npos) {
    return NotResp(std::string("RESP3 type '") + type + "', which was not asked for");
  }
  return NotResp("no reply starts with byte " + std::to_string(static_cast<unsigned char>(type)));
}

size_t LineBytesMax(char type) {
  return type == '+' || type == '-' ? kTextLineBytesMax : kNumberLineBytesMax;
}

std::optional<int64_t> NumberIn(std::string_view text) {
  int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

}  // namespace

absl::StatusOr<std::optional<RedisReply>> RespReader::Read(std::string_view* bytes) {
  while (!bytes->empty()) {
    const absl::StatusOr<bool> ended = text_ != nullptr ? TakeText(bytes) : TakeLine(bytes);
    if (!ended.ok()) return ended.status();
    if (!*ended || NextValue()) continue;
    value_ = &root_;
    charged_ = sizeof(RedisReply);
    return std::exchange(root_, RedisReply());
  }
  return std::nullopt;
}

absl::StatusOr<bool> RespReader::TakeLine(std::string_view* bytes) {
  const char type = line_.empty() ? bytes->front() : line_.front();
  if (kTypes.find(type) == std::string_view::npos) return BadType(type);
  const size_t feed = bytes->find('\n');
  const std::string_view piece = bytes->substr(0, feed == std::string_view::npos ? feed : feed + 1);
  if (line_.size() + piece.size() > LineBytesMax(type)) return NotResp("a line has no end");
  bytes->remove_prefix(piece.size());
  if (feed == std::string_view::npos) {
    line_.append(piece);
    return false;
  }
  std::string_view line = piece;
  if (!line_.empty()) line = line_.append(piece);
  if (line.size() < 1 + kEnd.size() || !line.ends_with(kEnd)) {
    return NotResp("a line does not end with CR LF");
  }
  absl::StatusOr<bool> ended = TakeValue(type, line.substr(1, line.size() - 1 - kEnd.size()));
  line_.clear();
  return ended;
}

absl::StatusOr<bool> RespReader::TakeValue(char type, std::string_view rest) {
  if (type == '+' || type == '-') {
    if (absl::Status status = Charge(rest.size(), 1); !status.ok()) return status;
    value_->kind = type == '+' ? RedisReply::Kind::kStatus : RedisReply::Kind::kError;
    value_->text = rest;
    return true;
  }
  const std::optional<int64_t> number = NumberIn(rest);
  if (!number.has_value()) return NotResp("a number is none");
  if (type == '$') return BeginText(*number);
  if (type == '*') return BeginArray(*number);
  value_->kind = RedisReply::Kind::kInteger;
  value_->integer = *number;
  return true;
}

absl::StatusOr<bool> RespReader::BeginText(int64_t length) {
  if (length == -1) return true;
  if (length < 0) return NotResp("a text of length " + std::to_string(length));
  const auto bytes = static_cast<size_t>(length);
  if (absl::Status status = Charge(bytes, 1); !status.ok()) return status;
  value_->kind = RedisReply::Kind::kString;
  value_->text.reserve(bytes);
  text_ = &value_->text;
  text_missing_ = bytes + kEnd.size();
  return false;
}

absl::StatusOr<bool> RespReader::BeginArray(int64_t length) {
  if (length == -1) return true;
  if (length < 0) return NotResp("an array of length " + std::to_string(length));
  if (open_.size() == limits_.depth_max) return NotResp("arrays are nested too deep");
  const auto count = static_cast<size_t>(length);
  if (absl::Status status = Charge(count, sizeof(RedisReply)); !status.ok()) return status;
  value_->kind = RedisReply::Kind::kArray;
  if (count == 0) return true;
  value_->elements.reserve(count);
  open_.push_back({value_, count});
  value_ = &value_->elements.emplace_back();
  return false;
}

absl::StatusOr<bool> RespReader::TakeText(std::string_view* bytes) {
  if (text_missing_ > kEnd.size()) {
    const std::string_view piece = bytes->substr(0, text_missing_ - kEnd.size());
    text_->append(piece);
    text_missing_ -= piece.size();
    bytes->remove_prefix(piece.size());
    return false;
  }
  if (bytes->front() != kEnd[kEnd.size() - text_missing_]) {
    return NotResp("a text goes on behind its length");
  }
  bytes->remove_prefix(1);
  if (--text_missing_ > 0) return false;
  text_ = nullptr;
  return true;
}

bool RespReader::NextValue() {
  while (!open_.empty()) {
    OpenArray& inner = open_.back();
    if (--inner.missing > 0) {
      value_ = &inner.array->elements.emplace_back();
      return true;
    }
    open_.pop_back();
  }
  return false;
}

absl::Status RespReader::Charge(size_t count, size_t bytes_each) {
  if (count > (limits_.bytes_max - std::min(charged_, limits_.bytes_max)) / bytes_each) {
    return absl::OutOfRangeError("a reply of more than " + std::to_string(limits_.bytes_max) +
                                 " bytes");
  }
  charged_ += count * bytes_each;
  return absl::OkStatus();
}

void AppendRespCommand(const std::vector<std::string>& args, std::string* out) {
  const auto line = [out](char type, size_t number) {
    out->push_back(type);
    out->append(std::to_string(number)).append(kEnd);
  };
  line('*', args.size());
  for (const std::string& arg : args) {
    line('$', arg.size());
    out->append(arg).append(kEnd);
  }
}

}  // namespace kvatlas
