// How are numbers and texts put into a checkpoint's records, and taken out again without trusting
// them?

#ifndef KVATLAS_INDEXER_CHECKPOINT_CHECKPOINT_BYTES_H_
#define KVATLAS_INDEXER_CHECKPOINT_CHECKPOINT_BYTES_H_

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace kvatlas {

static_assert(std::endian::native == std::endian::little,
              "the format is written as it lies in memory");

template <typename Number>
void PutNumber(std::string* to, Number number) {
  to->append(reinterpret_cast<const char*>(&number), sizeof number);
}

// 7 bits a byte, the lowest first.
inline void PutVarint(std::string* to, uint64_t number) {
  for (; number >= 0x80; number >>= 7) to->push_back(static_cast<char>(number | 0x80));
  to->push_back(static_cast<char>(number));
}

inline void PutText(std::string* to, std::string_view text) {
  PutVarint(to, text.size());
  to->append(text);
}

// Takes what was put; beyond the end everything is 0 and `ok` false.
class ByteTaker {
 public:
  explicit ByteTaker(std::string_view bytes) : bytes_(bytes) {}
  bool ok() const { return ok_; }
  bool empty() const { return bytes_.empty(); }

  template <typename Number>
  Number Take() {
    Number number{};
    if (bytes_.size() < sizeof number) {
      Fail();
      return number;
    }
    std::memcpy(&number, bytes_.data(), sizeof number);
    bytes_.remove_prefix(sizeof number);
    return number;
  }

  uint64_t TakeVarint() {
    uint64_t number = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = Take<uint8_t>();
      number |= uint64_t{byte & 0x7fu} << shift;
      if ((byte & 0x80) == 0) return number;
    }
    Fail();
    return 0;
  }

  std::string_view TakeBytes(uint64_t size) {
    if (bytes_.size() < size) {
      Fail();
      return {};
    }
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }

  std::string TakeText() { return std::string(TakeBytes(TakeVarint())); }

 private:
  void Fail() {
    ok_ = false;
    bytes_ = {};
  }
  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_CHECKPOINT_CHECKPOINT_BYTES_H_
