#include "tools/testing/servers/http_reference.h"

#include <arpa/inet.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace kvatlas {
namespace {

using Verdict = ReferenceReading::Verdict;
constexpr char kCrlf[] = "\r\n";

// ---- Characters: RFC 9110 §5.5, §5.6.2, RFC 5234 B.1 ----

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsAlpha(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsHex(char c) { return IsDigit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool IsVchar(char c) { return c > 0x20 && c < 0x7f; }
bool IsObsText(char c) { return static_cast<unsigned char>(c) >= 0x80; }
bool IsBlank(char c) { return c == ' ' || c == '\t'; }
bool IsTchar(char c) {
  return IsDigit(c) || IsAlpha(c) ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

template <typename Is>
bool All(std::string_view text, Is is) {
  for (char c : text)
    if (!is(c)) return false;
  return true;
}

bool IsToken(std::string_view text) { return !text.empty() && All(text, IsTchar); }

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return lower;
}

std::string_view Trim(std::string_view text) {
  while (!text.empty() && IsBlank(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsBlank(text.back())) text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> Split(std::string_view text, std::string_view separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + separator.size());
  }
}

// ---- Fields ----

struct Field {
  std::string name;  // in lower case
  std::string value;
};

// §5: field-name ":" OWS field-value OWS. Nothing: it is none, or a continuation of the line
// before.
std::optional<Field> ReadField(std::string_view line) {
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || !IsToken(line.substr(0, colon))) return std::nullopt;
  const std::string_view value = Trim(line.substr(colon + 1));
  if (!All(value, [](char c) { return IsVchar(c) || IsObsText(c) || IsBlank(c); }))
    return std::nullopt;
  return Field{Lower(line.substr(0, colon)), std::string(value)};
}

std::vector<std::string> ValuesOf(const std::vector<Field>& fields, std::string_view name) {
  std::vector<std::string> values;
  for (const Field& field : fields)
    if (field.name == name) values.push_back(field.value);
  return values;
}

// RFC 9110 §7.6.1: a list of tokens, some of which may be empty. Nothing: it is none.
std::optional<std::vector<std::string>> ReadOptions(const std::vector<std::string>& values) {
  std::vector<std::string> options;
  for (const std::string& value : values) {
    for (std::string_view option : Split(value, ",")) {
      option = Trim(option);
      if (option.empty()) continue;
      if (!IsToken(option)) return std::nullopt;
      options.push_back(Lower(option));
    }
  }
  return options;
}

bool Contains(const std::vector<std::string>& options, std::string_view option) {
  for (const std::string& other : options)
    if (other == option) return true;
  return false;
}

// RFC 9110 §7.2, RFC 3986 §3.2: uri-host [ ":" port ].
bool IsHost(std::string_view text) {
  const auto is_name = [](char c) {
    return IsDigit(c) || IsAlpha(c) ||
           std::string_view("-._~!$&'()*+,;=").find(c) != std::string_view::npos;
  };
  std::string_view port;
  if (text.substr(0, 1) == "[") {
    const size_t end = text.find(']');
    if (end == std::string_view::npos) return false;
    const std::string literal(text.substr(1, end - 1));
    port = text.substr(end + 1);
    unsigned char ignored[16];
    if (literal.find('\0') != std::string::npos ||
        inet_pton(AF_INET6, literal.c_str(), ignored) != 1)
      return false;
  } else {
    size_t at = 0;
    while (at < text.size() && text[at] != ':') {
      if (text[at] == '%') {
        if (at + 2 >= text.size() || !IsHex(text[at + 1]) || !IsHex(text[at + 2])) return false;
        at += 3;
      } else if (is_name(text[at])) {
        ++at;
      } else {
        return false;
      }
    }
    port = text.substr(at);
  }
  return port.empty() || (port.front() == ':' && All(port.substr(1), IsDigit));
}

// 1*DIGIT or 1*HEXDIG below 2^64.
std::optional<uint64_t> ReadNumber(std::string_view digits, unsigned base) {
  if (digits.empty()) return std::nullopt;
  unsigned __int128 number = 0;
  for (char c : digits) {
    if (base == 10 ? !IsDigit(c) : !IsHex(c)) return std::nullopt;
    const unsigned digit = IsDigit(c) ? static_cast<unsigned>(c - '0')
                                      : static_cast<unsigned>(Lower({&c, 1})[0] - 'a') + 10;
    number = number * base + digit;
    if (number > UINT64_MAX) return std::nullopt;
  }
  return static_cast<uint64_t>(number);
}

// ---- Chunks: §7.1 ----

// chunk-ext = *( BWS ";" BWS chunk-ext-name [ BWS "=" BWS chunk-ext-val ] )
bool IsChunkExtension(std::string_view text) {
  const auto skip_blanks = [&] {
    while (!text.empty() && IsBlank(text.front())) text.remove_prefix(1);
  };
  const auto take_token = [&] {
    size_t size = 0;
    while (size < text.size() && IsTchar(text[size])) ++size;
    text.remove_prefix(size);
    return size > 0;
  };
  // DQUOTE *( qdtext / quoted-pair ) DQUOTE
  const auto take_quoted = [&] {
    text.remove_prefix(1);
    while (!text.empty() && text.front() != '"') {
      if (text.front() == '\\') text.remove_prefix(1);
      if (text.empty()) return false;
      const char c = text.front();
      if (!IsBlank(c) && !IsVchar(c) && !IsObsText(c)) return false;
      text.remove_prefix(1);
    }
    if (text.empty()) return false;
    text.remove_prefix(1);
    return true;
  };
  while (!text.empty()) {
    skip_blanks();
    if (text.empty() || text.front() != ';') return false;
    text.remove_prefix(1);
    skip_blanks();
    if (!take_token()) return false;
    const std::string_view behind_name = text;
    skip_blanks();
    if (text.empty() || text.front() != '=') {
      text = behind_name;
      continue;
    }
    text.remove_prefix(1);
    skip_blanks();
    const bool quoted = !text.empty() && text.front() == '"';
    if (quoted ? !take_quoted() : !take_token()) return false;
  }
  return true;
}

ReferenceReading Refused(std::string why) {
  ReferenceReading reading;
  reading.verdict = Verdict::kRefused;
  reading.why = std::move(why);
  return reading;
}

// The chunks that `rest` begins with, to the end of the trailers; `reading` has the header's end as
// `bytes`.
ReferenceReading ReadChunks(std::string_view all, ReferenceReading reading) {
  while (true) {
    const size_t end = all.find(kCrlf, reading.bytes);
    if (end == std::string_view::npos) return {};
    const std::string_view line = all.substr(reading.bytes, end - reading.bytes);
    size_t digits = 0;
    while (digits < line.size() && IsHex(line[digits])) ++digits;
    const std::optional<uint64_t> size = ReadNumber(line.substr(0, digits), 16);
    if (!size.has_value()) return Refused("a chunk's size");
    // The last chunk and its trailers are one thing: what is wrong is known when their end is
    // there.
    if (*size == 0 && all.find("\r\n\r\n", end) == std::string_view::npos) return {};
    if (!IsChunkExtension(line.substr(digits))) return Refused("a chunk's extension");
    reading.bytes = end + 2;
    if (*size == 0) break;
    if (all.size() - reading.bytes < 2 || all.size() - reading.bytes - 2 < *size) return {};
    reading.body += all.substr(reading.bytes, *size);
    reading.bytes += *size;
    if (all.substr(reading.bytes, 2) != kCrlf) return Refused("the end of a chunk's data");
    reading.bytes += 2;
  }
  while (true) {
    const size_t end = all.find(kCrlf, reading.bytes);
    if (end == std::string_view::npos) return {};
    const std::string_view line = all.substr(reading.bytes, end - reading.bytes);
    reading.bytes = end + 2;
    if (line.empty()) return reading;
    const std::optional<Field> field = ReadField(line);
    if (!field.has_value()) return Refused("a trailer");
    if (field->name == "content-length" || field->name == "transfer-encoding")
      return Refused("a trailer about the body's length");
    if (field->name == "connection" && !ReadOptions({field->value}).has_value())
      return Refused("Connection in a trailer");
  }
}

}  // namespace

ReferenceReading ReadReferenceRequest(std::string_view all) {
  const size_t header_end = all.find("\r\n\r\n");
  if (header_end == std::string_view::npos) return {};
  const std::vector<std::string_view> lines = Split(all.substr(0, header_end), kCrlf);

  // §3: method SP request-target SP HTTP-version
  const std::vector<std::string_view> parts = Split(lines[0], " ");
  if (parts.size() != 3) return Refused("not three parts in the request line");
  if (!IsToken(parts[0])) return Refused("the method");
  if (parts[1].empty() || !All(parts[1], IsVchar)) return Refused("the target");
  const bool is_1_1 = parts[2] == "HTTP/1.1";
  if (!is_1_1 && parts[2] != "HTTP/1.0") return Refused("the version");

  std::vector<Field> fields;
  for (size_t i = 1; i < lines.size(); ++i) {
    std::optional<Field> field = ReadField(lines[i]);
    if (!field.has_value()) return Refused("a field");
    fields.push_back(*std::move(field));
  }

  // §3.2
  const std::vector<std::string> hosts = ValuesOf(fields, "host");
  if (hosts.size() > 1 || (hosts.empty() && is_1_1)) return Refused("not one Host");
  if (!hosts.empty() && !IsHost(hosts[0])) return Refused("the Host");

  // §9.3
  const std::optional<std::vector<std::string>> options =
      ReadOptions(ValuesOf(fields, "connection"));
  if (!options.has_value()) return Refused("Connection");

  ReferenceReading reading;
  reading.verdict = Verdict::kTaken;
  reading.bytes = header_end + 4;
  reading.method = std::string(parts[0]);
  reading.target = std::string(parts[1]);
  reading.persists = !Contains(*options, "close") && (is_1_1 || Contains(*options, "keep-alive"));

  // §6.1, §6.3
  const std::vector<std::string> encodings = ValuesOf(fields, "transfer-encoding");
  const std::vector<std::string> lengths = ValuesOf(fields, "content-length");
  if (!encodings.empty()) {
    if (encodings.size() > 1 || Lower(encodings[0]) != "chunked") return Refused("the encoding");
    if (!lengths.empty()) return Refused("a length beside an encoding");
    if (!is_1_1) return Refused("an encoding in HTTP/1.0");
    return ReadChunks(all, std::move(reading));
  }
  if (lengths.empty()) return reading;
  if (lengths.size() > 1) return Refused("several lengths");
  const std::optional<uint64_t> length = ReadNumber(lengths[0], 10);
  if (!length.has_value()) return Refused("the length");
  if (all.size() - reading.bytes < *length) return {};
  reading.body = std::string(all.substr(reading.bytes, *length));
  reading.bytes += *length;
  return reading;
}

}  // namespace kvatlas
