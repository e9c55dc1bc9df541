// Serves the page's files, its figures and the questions of /ui/explain, and samples the figures
// once a second. The files are part of the binary (ui_files.h).

#include "indexer/ui/ui_http.h"

#include <chrono>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "indexer/base/clock.h"
#include "indexer/ui/ui_files.h"

namespace kvatlas {
namespace {

constexpr std::string_view kRoot = "/ui/";
constexpr size_t kExplainBodyBytesMax = 4 << 20;

// Nothing from other hosts, no inline script or style, no frame of another site.
constexpr char kContentSecurityPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src "
    "'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

std::string_view ContentTypeOf(std::string_view path) {
  constexpr std::pair<std::string_view, std::string_view> kTypes[] = {
      {".html", "text/html; charset=utf-8"},
      {".css", "text/css; charset=utf-8"},
      {".js", "text/javascript; charset=utf-8"},
      {".svg", "image/svg+xml"}};
  for (const auto& [ending, type] : kTypes)
    if (path.ends_with(ending)) return type;
  return "text/plain; charset=utf-8";
}

HttpHeaders HeadersOfFiles() {
  return {{"content-security-policy", kContentSecurityPolicy},
          {"x-content-type-options", "nosniff"},
          {"referrer-policy", "no-referrer"}};
}

// Data is of the moment: no cache may store it.
HttpHeaders HeadersOfData() {
  return {{"cache-control", "no-store"}, {"x-content-type-options", "nosniff"}};
}

const UiFile* FileOf(std::string_view path) {
  for (const UiFile& file : UiFiles())
    if (file.path == path) return &file;
  return nullptr;
}

// Whether the client has this version of the index already. Always false where the server does not
// keep headers (`HttpServerOptions::keep_headers`); then the whole file is sent.
bool HasTag(const HttpRequest& request, std::string_view tag) {
  for (const auto& [name, value] : request.headers)
    if (absl::EqualsIgnoreCase(name, "if-none-match") && value.find(tag) != std::string::npos)
      return true;
  return false;
}

// The index is checked at each visit (no-cache, with an ETag); it names the other files below a
// folder of this version, which may be cached for ever.
HttpResponse Index(const HttpRequest& request) {
  const std::string tag = absl::StrCat("\"", std::string(UiVersion()), "\"");
  HttpResponse response{.headers = HeadersOfFiles()};
  response.headers.emplace_back("cache-control", "no-cache");
  response.headers.emplace_back("etag", tag);
  response.content_type = ContentTypeOf("index.html");
  if (HasTag(request, tag)) {
    response.status = 304;
    return response;
  }
  const std::string_view body = FileOf("index.html")->body;
  const std::string_view version = UiVersion();
  response.body =
      absl::StrReplaceAll(absl::string_view(body.data(), body.size()),
                          {{"{{version}}", absl::string_view(version.data(), version.size())}});
  return response;
}

// A file below /ui/VERSION/. While a fleet is upgraded behind one address, a page of another
// version may ask here: it gets this version's file, which must not be cached under the other name.
HttpResponse File(const HttpRequest& request) {
  const std::string_view rest = std::string_view(request.path).substr(kRoot.size());
  if (rest.empty() || rest == "index.html") return Index(request);
  const size_t slash = rest.find('/');
  const UiFile* file = slash == std::string_view::npos ? nullptr : FileOf(rest.substr(slash + 1));
  if (file == nullptr || file->path == "index.html") return HttpError(404, "no such file");
  HttpResponse response{.content_type = std::string(ContentTypeOf(file->path)),
                        .body = std::string(file->body),
                        .headers = HeadersOfFiles()};
  const bool same = rest.substr(0, slash) == UiVersion();
  response.headers.emplace_back("cache-control",
                                same ? "public, max-age=31536000, immutable" : "no-cache");
  return response;
}

HttpResponse ToPage(const HttpRequest&) {
  HttpResponse response{.status = 307, .content_type = "", .headers = HeadersOfData()};
  response.headers.emplace_back("location", std::string(kRoot));
  return response;
}

int64_t UnixMs() { return static_cast<int64_t>(WallTimeNs() / 1'000'000); }

}  // namespace

// Shared by the routes and the sampler: routes may run after the `Ui` is gone, until the server
// stops.
struct Ui::Parts {
  explicit Parts(UiPages pages_in) : pages(std::move(pages_in)), ring(pages.charts) {}

  HttpResponse Fleet(const HttpRequest& request) const {
    HttpResponse response{.body = pages.fleet(request.Param("cell").value_or("")),
                          .headers = HeadersOfData()};
    if (response.body.empty()) return HttpError(404, "no such cell is known");
    return response;
  }

  HttpResponse Series(const HttpRequest& request) const {
    int64_t since = 0;
    const std::optional<std::string> text = request.Param("since");
    if (text.has_value() && !absl::SimpleAtoi(*text, &since))
      return HttpError(400, "since=" + *text + " is no number of milliseconds");
    return {.body = ring.Json(since), .headers = HeadersOfData()};
  }

  const UiPages pages;
  SeriesRing ring;
};

Ui::Ui(UiPages pages, AdminHttp* http) : parts_(std::make_shared<Parts>(std::move(pages))) {
  http->Handle("GET", "/", ToPage);
  http->Handle("GET", "/ui", ToPage);
  http->Handle("GET", "/ui/*", File);
  http->Handle("GET", "/ui/fleet.json",
               [parts = parts_](const HttpRequest& request) { return parts->Fleet(request); });
  http->Handle("GET", "/ui/series.json",
               [parts = parts_](const HttpRequest& request) { return parts->Series(request); });
  if (parts_->pages.sessions != nullptr) {
    http->Handle("GET", "/ui/sessions.json", [parts = parts_](const HttpRequest& request) {
      HttpResponse response = parts->pages.sessions(request);
      for (auto& header : HeadersOfData()) response.headers.push_back(std::move(header));
      return response;
    });
  }
  if (parts_->pages.explain != nullptr) {
    http->server()->Handle({.method = "POST",
                            .path = "/ui/explain",
                            .handler = parts_->pages.explain,
                            .body_bytes_max = kExplainBodyBytesMax,
                            .json_body = true});
  }
  sampler_ = std::thread([this] { Sample(); });
}

Ui::~Ui() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    wake_.SignalAll();
  }
  sampler_.join();
}

// The sampling thread. `sample` runs without the mutex, so that the destructor waits for one sample
// at most.
void Ui::Sample() {
  MutexLock lock(&mutex_);
  while (!stopping_) {
    mutex_.Unlock();
    parts_->ring.Add(UnixMs(), parts_->pages.sample());
    mutex_.Lock();
    if (!stopping_) wake_.WaitFor(&mutex_, std::chrono::milliseconds(kSeriesEveryMs));
  }
}

}  // namespace kvatlas
