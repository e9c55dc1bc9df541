// Reads URLs from left to right: scheme, query off the end, login up to the last '@', hosts,
// database. Errors carry the URL without its password (Bad). The last functions hide passwords in
// any text for people.

#include "indexer/net/redis_url.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"

namespace kvatlas {
namespace {

constexpr int kDatabaseMax = 1 << 20;  // far above what a server can be configured to have
constexpr uint16_t kRedisPort = 6379;
constexpr uint16_t kSentinelPort = 26379;
constexpr size_t kFileBytesMax = 4096;
constexpr mode_t kFileModeMax = 0640;

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

absl::StatusOr<std::string> PercentDecode(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded.push_back(text[i]);
      continue;
    }
    if (i + 2 >= text.size() || HexDigit(text[i + 1]) < 0 || HexDigit(text[i + 2]) < 0) {
      return absl::InvalidArgumentError("'%' is not followed by two hexadecimal digits");
    }
    decoded.push_back(static_cast<char>(HexDigit(text[i + 1]) * 16 + HexDigit(text[i + 2])));
    i += 2;
  }
  return decoded;
}

// The error of a whole URL, with its password hidden.
absl::Status Bad(std::string_view url, const std::string& why) {
  return absl::InvalidArgumentError("not a Redis URL: " + RedisUrlWithoutPassword(url) + ": " +
                                    why);
}

// [USER][:PASSWORD]
absl::Status ParseLogin(std::string_view text, RedisOptions* options) {
  const size_t colon = text.find(':');
  absl::StatusOr<std::string> user = PercentDecode(text.substr(0, colon));
  if (!user.ok()) return user.status();
  options->user = *std::move(user);
  if (colon == std::string_view::npos) return absl::OkStatus();
  absl::StatusOr<std::string> password = PercentDecode(text.substr(colon + 1));
  if (!password.ok()) return password.status();
  options->password = *std::move(password);
  return absl::OkStatus();
}

// Without a port, unless a ':' stands outside the brackets of IPv6.
absl::Status ParseHost(std::string_view text, uint16_t default_port, RedisOptions* options) {
  const bool has_port = !text.empty() && text.back() != ']' && text.find(':') != text.npos;
  absl::StatusOr<Address> address = Address::Parse(
      has_port ? std::string(text) : std::string(text) + ":" + std::to_string(default_port));
  if (!address.ok()) return address.status();
  if (address->port == 0) return absl::InvalidArgumentError("port 0");
  options->hosts.push_back(*std::move(address));
  return absl::OkStatus();
}

absl::Status ParseHosts(std::string_view text, uint16_t default_port, RedisOptions* options) {
  while (true) {
    const size_t comma = text.find(',');
    absl::Status status = ParseHost(text.substr(0, comma), default_port, options);
    if (!status.ok() || comma == std::string_view::npos) return status;
    text.remove_prefix(comma + 1);
  }
}

absl::Status ParseDatabase(std::string_view text, RedisOptions* options) {
  if (text.empty()) return absl::OkStatus();
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), options->database);
  if (error != std::errc() || end != text.data() + text.size() || options->database < 0 ||
      options->database > kDatabaseMax) {
    return absl::InvalidArgumentError("the database is not a number");
  }
  return absl::OkStatus();
}

// The path of the file that has the URL; nothing: `url` is one itself.
std::optional<std::string> FileOf(std::string_view url) {
  constexpr std::string_view kInList = "redis://@/";
  if (url.starts_with('@')) return std::string(url.substr(1));
  if (url.starts_with(kInList)) return std::string(url.substr(kInList.size() - 1));
  return std::nullopt;
}

absl::Status BadFile(const std::string& path, const std::string& why) {
  return absl::InvalidArgumentError("the file with the Redis URL, \"" + path + "\": " + why);
}

// The type and the mode are checked on the open descriptor, so that the file cannot be exchanged
// between the check and the read. One byte more than allowed is read, to tell a file that is too
// long.
absl::StatusOr<std::string> ReadUrlFile(const std::string& path) {
  // Not blocking: opening a FIFO would wait for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return BadFile(path, std::strerror(errno));
  struct stat found = {};
  std::string text(kFileBytesMax + 1, '\0');
  const bool is_file = fstat(fd, &found) == 0 && S_ISREG(found.st_mode);
  const ssize_t size = is_file ? read(fd, text.data(), text.size()) : -1;
  close(fd);
  if (!is_file) return BadFile(path, "not a regular file");
  if ((found.st_mode & 07777 & ~kFileModeMax) != 0)
    return BadFile(path, "others may open it too; chmod 0640 or less");
  if (size < 0) return BadFile(path, "it cannot be read");
  if (static_cast<size_t>(size) > kFileBytesMax) return BadFile(path, "it is too long");
  text.resize(static_cast<size_t>(size));
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return BadFile(path, "it is empty");
  text = text.substr(first, text.find_last_not_of(" \t\r\n") + 1 - first);
  if (FileOf(text).has_value()) return BadFile(path, "it names a file instead of a URL");
  return text;
}

// The options behind the '?'.
struct Query {
  std::string master;
  TlsPaths tls;
  std::string log_key;
};

// NAME=VALUE pairs joined by '&'; of a name that comes twice the last value counts. Unknown names
// are refused: a misspelt `ca` must not become a connection in clear.
absl::Status ParseQuery(std::string_view text, Query* query) {
  const std::pair<std::string_view, std::string*> fields[] = {{"master", &query->master},
                                                              {"ca", &query->tls.ca},
                                                              {"cert", &query->tls.certificate},
                                                              {"key", &query->tls.key},
                                                              {"log_key", &query->log_key}};
  while (!text.empty()) {
    const size_t end = std::min(text.find('&'), text.size());
    const std::string_view option = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t equals = option.find('=');
    const auto* const field =
        std::find_if(std::begin(fields), std::end(fields),
                     [&](const auto& one) { return one.first == option.substr(0, equals); });
    if (equals == std::string_view::npos || field == std::end(fields)) {
      return absl::InvalidArgumentError(
          "expected ?NAME=VALUE with NAME one of master, ca, cert, key, log_key");
    }
    absl::StatusOr<std::string> value = PercentDecode(option.substr(equals + 1));
    if (!value.ok()) return value.status();
    *field->second = *std::move(value);
  }
  return absl::OkStatus();
}

// Checks that the options fit the scheme, and reads the files that they name.
absl::Status UseQuery(Query query, bool tls, bool sentinel, RedisOptions* options) {
  if (sentinel && query.master.empty())
    return absl::InvalidArgumentError("?master=NAME is missing");
  if (!sentinel && !query.master.empty())
    return absl::InvalidArgumentError("only redis-sentinel:// has ?master=NAME");
  options->sentinel_master = std::move(query.master);
  if (tls && query.tls.ca.empty()) {
    return absl::InvalidArgumentError(
        "?ca=FILE is missing, with the CAs that the server's certificate is checked against");
  }
  if (!tls && query.tls.any())
    return absl::InvalidArgumentError("ca, cert and key are for rediss://");
  if (tls) {
    absl::StatusOr<std::unique_ptr<TlsFiles>> files = TlsFiles::Read(std::move(query.tls));
    if (!files.ok()) return files.status();
    options->tls = *std::move(files);
  }
  if (query.log_key.empty()) return absl::OkStatus();
  absl::StatusOr<std::shared_ptr<RecordKeys>> keys = RecordKeys::Read(query.log_key);
  if (!keys.ok()) return keys.status();
  options->record_keys = *std::move(keys);
  return absl::OkStatus();
}

// The steps at the top of this file. The scheme decides TLS ("rediss") and sentinels.
absl::StatusOr<RedisOptions> ParseWholeUrl(std::string_view url) {
  const size_t scheme_end = url.find("://");
  const std::string_view scheme = url.substr(0, scheme_end);
  const bool tls = scheme.starts_with("rediss");
  const bool sentinel = scheme == "redis-sentinel" || scheme == "rediss-sentinel";
  if (scheme_end == std::string_view::npos ||
      (scheme != "redis" && scheme != "rediss" && !sentinel)) {
    return Bad(url,
               "it starts neither with redis:// nor with redis-sentinel://, nor with rediss://, by "
               "TLS");
  }
  RedisOptions options;
  std::string_view rest = url.substr(scheme_end + 3);
  std::string_view query;
  if (const size_t mark = rest.find('?'); mark != std::string_view::npos) {
    query = rest.substr(mark + 1);
    rest = rest.substr(0, mark);
  }
  // The last '@': a password may contain others.
  if (const size_t at = rest.rfind('@'); at != std::string_view::npos) {
    if (absl::Status status = ParseLogin(rest.substr(0, at), &options); !status.ok()) {
      return Bad(url, std::string(status.message()));
    }
    rest.remove_prefix(at + 1);
  }
  const size_t slash = rest.find('/');
  absl::Status status =
      ParseHosts(rest.substr(0, slash), sentinel ? kSentinelPort : kRedisPort, &options);
  if (slash != std::string_view::npos) {
    status.Update(ParseDatabase(rest.substr(slash + 1), &options));
  }
  Query parsed;
  if (status.ok()) status = ParseQuery(query, &parsed);
  if (status.ok()) status = UseQuery(std::move(parsed), tls, sentinel, &options);
  if (!status.ok()) return Bad(url, std::string(status.message()));
  return options;
}

}  // namespace

absl::StatusOr<std::string> ReadRedisUrl(std::string_view url) {
  const std::optional<std::string> file = FileOf(url);
  return file.has_value() ? ReadUrlFile(*file) : std::string(url);
}

absl::StatusOr<RedisOptions> ParseRedisUrl(std::string_view url) {
  const absl::StatusOr<std::string> whole = ReadRedisUrl(url);
  if (!whole.ok()) return whole.status();
  return ParseWholeUrl(*whole);
}

// For one URL; a login without a password is shown.
std::string RedisUrlWithoutPassword(std::string_view url) {
  const size_t scheme_end = url.find("://");
  const size_t start = scheme_end == std::string_view::npos ? 0 : scheme_end + 3;
  const size_t at = url.rfind('@');
  if (at == std::string_view::npos || at < start) return std::string(url);
  const std::string_view login = url.substr(start, at - start);
  const size_t colon = login.find(':');
  if (colon == std::string_view::npos) return std::string(url);
  return std::string(url.substr(0, start + colon)) + ":***" + std::string(url.substr(at));
}

// 1. A URL begins where a scheme does, with nothing, a blank or a separator before it: a password
//   may have "://" in it too.
// 2. Its login ends at the last '@' before the next URL.
std::string WithoutPasswords(std::string_view text) {
  constexpr std::string_view kAfterScheme = "://";
  constexpr std::string_view kBeforeScheme = " \t\r\n,;=|\"'([<{";
  const auto next_url = [&](size_t from) {
    for (size_t at = text.find(kAfterScheme, from); at != std::string_view::npos;
         at = text.find(kAfterScheme, at + 1)) {
      size_t scheme = at;
      while (scheme > from && (absl::ascii_isalnum(static_cast<unsigned char>(text[scheme - 1])) ||
                               text[scheme - 1] == '-'))
        --scheme;
      if (scheme > from && kBeforeScheme.find(text[scheme - 1]) != std::string_view::npos)
        return at;
    }
    return std::string_view::npos;
  };
  std::string shown;
  size_t done = 0;
  for (size_t at = text.find(kAfterScheme); at != std::string_view::npos;) {
    const size_t login = at + kAfterScheme.size();
    const size_t next = next_url(login);
    const std::string_view rest = text.substr(0, next).substr(login);
    const size_t login_end = rest.rfind('@');
    const size_t colon = rest.find(':');
    if (login_end != std::string_view::npos && colon < login_end) {
      shown += std::string(text.substr(done, login + colon - done)) + ":***";
      done = login + login_end;
    }
    at = next;
  }
  return shown + std::string(text.substr(done));
}

// As WithoutPasswords, for the four schemes of Redis alone: a login with a ':' before the next URL.
bool HasRedisPassword(std::string_view text) {
  constexpr std::string_view kAfterScheme = "://";
  for (size_t at = text.find(kAfterScheme); at != std::string_view::npos;) {
    const std::string_view before = text.substr(0, at);
    const std::string_view rest = text.substr(at + kAfterScheme.size());
    const size_t next = rest.find(kAfterScheme);
    const size_t login_end = rest.substr(0, next).rfind('@');
    const bool is_redis = before.ends_with("redis") || before.ends_with("rediss") ||
                          before.ends_with("redis-sentinel") || before.ends_with("rediss-sentinel");
    if (is_redis && login_end != std::string_view::npos && rest.find(':') < login_end) return true;
    at = next == std::string_view::npos ? next : at + kAfterScheme.size() + next;
  }
  return false;
}

std::string RedisHosts(const RedisOptions& options) {
  std::string hosts;
  for (const Address& host : options.hosts)
    hosts += (!hosts.empty()           ? ","
              : options.tls == nullptr ? "redis://"
                                       : "rediss://") +
             host.ToString();
  return hosts;
}

}  // namespace kvatlas
