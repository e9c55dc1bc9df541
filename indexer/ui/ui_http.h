// A page about this process, and about what it knows of others, for a browser.
//
//   GET /                      sends on to /ui/
//   GET /ui/                   the page; its other files are below /ui/VERSION/, which may be kept for ever
//   GET /ui/fleet.json         what is there, and how well (`fleet.h` has the schema); ?cell=NAME: that cell alone, with its workers
//   GET /ui/series.json        figures of the last 900 seconds (`series.h`); ?since=UNIX_MS: later ones alone
//   GET /ui/sessions.json      what of sessions is where (`sessions.h`); ?session=ID: of one
//   POST /ui/explain           where a prompt is cached (`UiPages::explain`); 404 where it is off
//
// *Truth*: the page asks nothing of any other host, and its Content-Security-Policy forbids it to.
// It has no hashes, tokens or prompts, but for answers of /ui/explain.
// *Who may see it*: verb `status`; /ui/explain and /ui/sessions.json need `dump`. Decisions come
// from /decisions, which shows a tenant its own.
// *Threads*: a thread of its own samples once a second. `fleet` and `explain` are called on the
// server's pool.
// *Lifetime*: what the functions use outlives this object and the server.
//
// Example:
//   UiPages pages{.charts = …, .sample = [&] { return std::vector<double>{…}; }, .fleet = [&](const
//   std::string& cell) { … }};
//   Ui ui(std::move(pages), &http);

#ifndef KVATLAS_INDEXER_UI_UI_HTTP_H_
#define KVATLAS_INDEXER_UI_UI_HTTP_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "indexer/base/mutex.h"
#include "indexer/net/http_server.h"
#include "indexer/process/admin_http.h"
#include "indexer/ui/series.h"

namespace kvatlas {

struct UiPages {
  std::vector<ChartSpec> charts;
  // A value of each series, in the order of `charts`; on the thread that samples.
  std::function<std::vector<double>()> sample;
  // The body of fleet.json; of one cell, if it is named; empty: there is no such cell.
  std::function<std::string(const std::string& cell)> fleet;
  // Null: off.
  HttpHandler explain = nullptr;
  HttpHandler sessions = nullptr;
};

class Ui {
 public:
  // REQUIRES: `http` has not started.
  Ui(UiPages pages, AdminHttp* http);
  ~Ui();

  Ui(const Ui&) = delete;
  Ui& operator=(const Ui&) = delete;

 private:
  struct Parts;  // that routes keep alive
  void Sample();

  const std::shared_ptr<Parts> parts_;
  Mutex mutex_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread sampler_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_UI_UI_HTTP_H_
