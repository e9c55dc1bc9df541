// State that the process sets and probes read. `mutex_` guards three values; the gate is called
// without it. The answers are built by hand: they are short, and probes must not depend on more
// than that.

#include "indexer/process/process_health.h"

#include <string_view>
#include <utility>

#include "indexer/telemetry/text_escape.h"

namespace kvatlas {
namespace {

void AppendQuoted(std::string_view text, std::string* out) {
  out->push_back('"');
  AppendJsonEscaped(out, text);
  out->push_back('"');
}

// ,"reason":"…" where there is one.
void AppendReason(std::string_view reason, std::string* out) {
  if (reason.empty()) return;
  *out += ",\"reason\":";
  AppendQuoted(reason, out);
}

std::string_view NameOf(Health health) {
  switch (health) {
    case Health::kLoading:
      return "loading";
    case Health::kServing:
      return "serving";
    case Health::kStopping:
      return "stopping";
  }
  return "unknown";
}

}  // namespace

// kStopping is final: a part that finishes loading during the stop must not make the process ready.
void ProcessHealth::Set(Health health, std::string reason) {
  MutexLock lock(&mutex_);
  if (health_ == Health::kStopping) return;
  health_ = health;
  reason_ = reason.empty() ? std::string(NameOf(health)) : std::move(reason);
}

// Called without the mutex later (readiness), since a gate takes locks of its own.
void ProcessHealth::SetGate(std::function<Readiness()> gate) { gate_ = std::move(gate); }

void ProcessHealth::SetDeaf(std::string reason) {
  MutexLock lock(&mutex_);
  deaf_ = std::move(reason);
}

Health ProcessHealth::health() const {
  MutexLock lock(&mutex_);
  return health_;
}

std::string ProcessHealth::deaf() const {
  MutexLock lock(&mutex_);
  return deaf_;
}

// In this order: serving, all listeners take connections, then the gate. The first failure is the
// reason.
Readiness ProcessHealth::readiness() const {
  {
    MutexLock lock(&mutex_);
    if (health_ != Health::kServing) return {.ready = false, .reason = reason_};
    if (!deaf_.empty()) return {.ready = false, .reason = deaf_};
  }
  return gate_ == nullptr ? Readiness{.ready = true, .reason = ""} : gate_();
}

// All are quick and vital: answered whatever other requests do.
void ProcessHealth::AddRoutes(HttpServer* server) const {
  const auto add = [&](const char* path, void (ProcessHealth::*answer)(HttpResponse*) const) {
    server->Handle({.method = "GET",
                    .path = path,
                    .quick =
                        [this, answer](const HttpRequest&, HttpResponse* response) {
                          (this->*answer)(response);
                          return true;
                        },
                    .vital = true});
  };
  add("/livez", &ProcessHealth::AnswerLive);
  add("/ready", &ProcessHealth::AnswerReady);
  add("/healthz", &ProcessHealth::AnswerBoth);
}

// Only a listener that takes no connections makes a process not live: a restart helps there, and
// nowhere else.
void ProcessHealth::AnswerLive(HttpResponse* response) const {
  const std::string deaf = this->deaf();
  response->status = deaf.empty() ? 200 : 503;
  response->body = deaf.empty() ? "{\"live\":true" : "{\"live\":false";
  AppendReason(deaf, &response->body);
  response->body += "}\n";
}

void ProcessHealth::AnswerReady(HttpResponse* response) const {
  const Readiness readiness = this->readiness();
  response->status = readiness.ready ? 200 : 503;
  response->body = readiness.ready ? "{\"ready\":true" : "{\"ready\":false";
  if (!readiness.ready) AppendReason(readiness.reason, &response->body);
  response->body += "}\n";
}

// /healthz: kServing and live. It does not ask the gate.
void ProcessHealth::AnswerBoth(HttpResponse* response) const {
  const Health health = this->health();
  const std::string deaf = this->deaf();
  response->status = health == Health::kServing && deaf.empty() ? 200 : 503;
  response->body = "{\"health\":";
  AppendQuoted(NameOf(health), &response->body);
  AppendReason(deaf, &response->body);
  response->body += "}\n";
}

}  // namespace kvatlas
