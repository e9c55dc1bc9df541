// hiredis' reader calls the Make functions for each value, parents before children, and stores what
// they return as the object of its task. Values live in `root_`; the reader only ever sees the root
// as a `redisReply`, whose type it looks at. A null return ends the reading with an error, and
// `why_` has the reason.

#include "indexer/net/redis_reply_builder.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string_view>
#include <utility>

namespace kvatlas {
namespace {

constexpr std::string_view kLineEnd = "\r\n";
constexpr size_t kLineBytesMax = 16 << 10;  // of statuses, errors, numbers and lengths

absl::Status NotResp(std::string_view why) {
  return absl::InvalidArgumentError("not RESP2: " + std::string(why));
}

bool IsOfResp2(int type) {
  return type == REDIS_REPLY_STRING || type == REDIS_REPLY_ARRAY || type == REDIS_REPLY_INTEGER ||
         type == REDIS_REPLY_STATUS || type == REDIS_REPLY_ERROR;
}

}  // namespace

RedisReplyBuilder::RedisReplyBuilder(size_t bytes_max, std::function<bool()> is_asked)
    : bytes_max_(bytes_max), is_asked_(std::move(is_asked)) {}

void RedisReplyBuilder::Attach(redisReader* reader) {
  static redisReplyObjectFunctions functions = {.createString = MakeText,
                                                .createArray = MakeArray,
                                                .createInteger = MakeInteger,
                                                .createDouble = MakeDouble,
                                                .createNil = MakeNil,
                                                .createBool = MakeBool,
                                                .freeObject = Free};
  reader_ = reader;
  reader->fn = &functions;
  reader->privdata = this;
  reader->maxdepth = kRedisReplyDepthMax;
}

// Called before more bytes are fed. The reader stands behind the type byte of a value that has not
// come whole. Two things would let its buffer grow without end: a line without an end, and the
// announced length of a text that exceeds the bound.
absl::Status RedisReplyBuilder::Check() const {
  if (reader_->ridx < 0) return absl::OkStatus();
  const redisReadTask& task = *reader_->task[reader_->ridx];
  const std::string_view waiting(reader_->buf + reader_->pos, reader_->len - reader_->pos);
  const size_t line_end = waiting.substr(0, kLineBytesMax).find(kLineEnd);
  if (line_end == std::string_view::npos) {
    return waiting.size() < kLineBytesMax ? absl::OkStatus() : NotResp("a line is too long");
  }
  if (task.type != REDIS_REPLY_STRING) return absl::OkStatus();
  size_t announced = 0;
  std::from_chars(waiting.data(), waiting.data() + line_end, announced);
  const size_t charged = task.parent == nullptr ? sizeof(RedisReply) : charged_;
  return announced > bytes_max_ - std::min(charged, bytes_max_) ? TooLarge() : absl::OkStatus();
}

RedisReply RedisReplyBuilder::Take() { return std::exchange(root_.value, RedisReply()); }

absl::Status RedisReplyBuilder::Why() const { return why_.ok() ? NotResp(reader_->errstr) : why_; }

// hiredis has the text whole by now; its bytes are charged before they are copied.
void* RedisReplyBuilder::MakeText(const redisReadTask* task, char* text, size_t size) {
  RedisReplyBuilder* const builder = Of(task);
  RedisReply* const value = builder->Place(task);
  if (value == nullptr || !builder->Charge(size, 1)) return nullptr;
  if (task->type != REDIS_REPLY_STRING && size + kLineEnd.size() > kLineBytesMax) {
    builder->why_ = NotResp("a line is too long");
    return nullptr;
  }
  value->kind = task->type == REDIS_REPLY_STATUS  ? RedisReply::Kind::kStatus
                : task->type == REDIS_REPLY_ERROR ? RedisReply::Kind::kError
                                                  : RedisReply::Kind::kString;
  value->text.assign(text, size);
  return builder->Made(task, value);
}

// Charges all elements at once, before any is read. `reserve` is what keeps pointers to elements
// valid while the following ones are added (Place).
void* RedisReplyBuilder::MakeArray(const redisReadTask* task, size_t count) {
  RedisReplyBuilder* const builder = Of(task);
  RedisReply* const value = builder->Place(task);
  if (value == nullptr || !builder->Charge(count, sizeof(RedisReply))) return nullptr;
  value->kind = RedisReply::Kind::kArray;
  value->elements.reserve(count);
  return builder->Made(task, value);
}

void* RedisReplyBuilder::MakeInteger(const redisReadTask* task, long long number) {
  RedisReply* const value = Of(task)->Place(task);
  if (value == nullptr) return nullptr;
  value->kind = RedisReply::Kind::kInteger;
  value->integer = number;
  return Of(task)->Made(task, value);
}

void* RedisReplyBuilder::MakeNil(const redisReadTask* task) {
  RedisReply* const value = Of(task)->Place(task);
  return value == nullptr ? nullptr : Of(task)->Made(task, value);
}

// Doubles and booleans exist in RESP3 only: Place refuses them by their type.
void* RedisReplyBuilder::MakeDouble(const redisReadTask* task, double, char*, size_t) {
  return MakeNil(task);
}

void* RedisReplyBuilder::MakeBool(const redisReadTask* task, int) { return MakeNil(task); }

// Called by hiredis for a root alone; elements are part of it.
void RedisReplyBuilder::Free(void* made) {
  static_cast<Root*>(static_cast<redisReply*>(made))->value = RedisReply();
}

RedisReplyBuilder* RedisReplyBuilder::Of(const redisReadTask* task) {
  return static_cast<RedisReplyBuilder*>(task->privdata);
}

// The memory for a value: `root_.value` at the top, else the next element of the parent's array.
// The object of the top task is the `Root`, not its value, hence the two cases. Null: refused.
RedisReply* RedisReplyBuilder::Place(const redisReadTask* task) {
  if (!IsOfResp2(task->type)) {
    why_ = NotResp("a type of RESP3, which was not asked for");
    return nullptr;
  }
  if (task->parent != nullptr) {
    RedisReply* const array = task->parent->parent == nullptr
                                  ? &root_.value
                                  : static_cast<RedisReply*>(task->parent->obj);
    return &array->elements.emplace_back();
  }
  if (is_asked_ && !is_asked_()) {
    why_ = absl::InvalidArgumentError("a reply that nothing had asked for");
    return nullptr;
  }
  charged_ = sizeof(RedisReply);
  root_.value = RedisReply();
  return &root_.value;
}

// Returns what hiredis keeps as the task's object.
void* RedisReplyBuilder::Made(const redisReadTask* task, RedisReply* value) {
  if (task->parent != nullptr) return value;
  root_.type = task->type;
  return static_cast<redisReply*>(&root_);
}

// Divides instead of multiplying, so that an announced count cannot overflow.
bool RedisReplyBuilder::Charge(size_t count, size_t bytes_each) {
  if (count > (bytes_max_ - std::min(charged_, bytes_max_)) / bytes_each) {
    why_ = TooLarge();
    return false;
  }
  charged_ += count * bytes_each;
  return true;
}

absl::Status RedisReplyBuilder::TooLarge() const {
  return absl::OutOfRangeError("a reply of more than " + std::to_string(bytes_max_) + " bytes");
}

}  // namespace kvatlas
