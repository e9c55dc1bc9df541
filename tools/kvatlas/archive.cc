// A tar file is built in memory as files are added, and compressed once at the end.

#include "tools/kvatlas/archive.h"

#include <zlib.h>

#include <algorithm>
#include <cassert>
#include <cstdio>
#include <cstring>

namespace kvatlas {
namespace {

constexpr size_t kBlock = 512;

// The header of a file in a tar archive (POSIX ustar): all text, numbers in octal.
struct Header {
  char name[100];
  char mode[8];
  char uid[8];
  char gid[8];
  char size[12];
  char mtime[12];
  char checksum[8];
  char type;
  char link[100];
  char magic[6];
  char version[2];
  char rest[247];
};
static_assert(sizeof(Header) == kBlock);

}  // namespace

void Archive::Add(std::string_view name, std::string_view content) {
  assert(name.size() < sizeof(Header::name));
  Header header = {};
  name.copy(header.name, sizeof(header.name) - 1);
  std::snprintf(header.mode, sizeof(header.mode), "%07o", 0600u);
  std::snprintf(header.uid, sizeof(header.uid), "%07o", 0u);
  std::snprintf(header.gid, sizeof(header.gid), "%07o", 0u);
  std::snprintf(header.size, sizeof(header.size), "%011zo", content.size());
  std::snprintf(header.mtime, sizeof(header.mtime), "%011llo",
                static_cast<unsigned long long>(unix_s_) & 0777'7777'7777ULL);
  header.type = '0';
  std::memcpy(header.magic, "ustar", sizeof(header.magic));
  std::memcpy(header.version, "00", sizeof(header.version));
  // The checksum is the sum of the header's bytes with this field as blanks.
  std::memset(header.checksum, ' ', sizeof(header.checksum));
  unsigned sum = 0;
  for (size_t i = 0; i < sizeof(header); ++i)
    sum += reinterpret_cast<const unsigned char*>(&header)[i];
  std::snprintf(header.checksum, sizeof(header.checksum), "%06o", sum);
  tar_.append(reinterpret_cast<const char*>(&header), sizeof(header));
  tar_.append(content);
  // Content is padded to full blocks.
  tar_.resize((tar_.size() + kBlock - 1) / kBlock * kBlock);
}

absl::StatusOr<std::string> Archive::TarGz() const {
  // Two empty blocks end an archive.
  const std::string tar = tar_ + std::string(2 * kBlock, '\0');
  z_stream stream = {};
  constexpr int kGzip = 16 + MAX_WBITS;
  if (deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, kGzip, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    return absl::InternalError("zlib cannot begin");
  // One call is enough: the output has room for the worst case.
  std::string out(deflateBound(&stream, tar.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(tar.data()));
  stream.avail_in = static_cast<uInt>(tar.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int ended = deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  if (ended != Z_STREAM_END) return absl::InternalError("zlib cannot end");
  return out;
}

}  // namespace kvatlas
