// Finds and asks services in waves: all services that are known and not yet asked are asked at
// once, and what they name is the next wave. The threads of a wave only fill in `Answer`s; `Take`
// adds them to the survey on one thread, in order, so the result does not depend on timing.

#include "tools/kvatlas/survey.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "tools/kvatlas/holdings.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

constexpr char kKindLabel[] = "kvatlas.kind";  // of a node below a node (hierarchy/hierarchy.h)
constexpr char kKindNode[] = "node";
constexpr char kLeafHttp[] = "leaf_http";  // of a leaf in `serve`, which has ports of its own

int64_t UnixMs() {
  using std::chrono::system_clock;
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             system_clock::now().time_since_epoch())
      .count();
}

// The address of a port, at the host where the service was asked: it may listen at all of its own.
std::optional<Address> ListensAt(const SurveyedNode& node, const std::string& port) {
  const absl::StatusOr<Address> asked = Address::Parse(node.addresses.front());
  const auto listens = node.stats.process().listens().find(port);
  if (!asked.ok() || listens == node.stats.process().listens().end()) return std::nullopt;
  absl::StatusOr<Address> address = Address::Parse(listens->second);
  if (!address.ok()) return std::nullopt;
  address->host = asked->host;
  return *std::move(address);
}

// Calls `visit` for 0 to `count` - 1 on up to `kAskedAtOnce` threads, and waits.
void AtOnce(size_t count, const std::function<void(size_t)>& visit) {
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < std::min(count, kAskedAtOnce); ++i) {
    threads.emplace_back([&] {
      for (size_t at = next++; at < count; at = next++) visit(at);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// One service to be asked; `told_by` is empty for the command line.
struct ToAsk {
  ServiceRole role;
  std::string address;
  std::string told_by;
  std::string cell;

  bool is_node() const { return role == ServiceRole::kLeaf || role == ServiceRole::kHierarchy; }
  // `serve` is asked as the frontend that it has.
  std::string kind() const {
    return std::string(RoleName(role == ServiceRole::kServe ? ServiceRole::kFrontend : role));
  }
};

// The answer of one service: a node or a page, or why there is none, and its certificate.
struct Answer {
  std::optional<SurveyedNode> node;
  std::optional<SurveyedPage> page;
  std::optional<Unreached> unreached;
  std::optional<Certificate> certificate;
};

// One survey. `wave_` holds services to be asked next; `seen_` everything that was ever added, so
// that services which name each other end the walk. Only `Ask` and what it calls run on other
// threads: they are const and change nothing of the survey.
class Surveyor {
 public:
  explicit Surveyor(const SurveyOptions& options) : options_(options) {}

  Survey Run();

 private:
  void Add(ServiceRole role, const std::string& address, const std::string& told_by,
           const std::string& cell = "");
  void Follow(ServiceRole role, const std::string& address, const std::string& told_by,
              const std::string& cell = "");
  Answer Ask(const ToAsk& what) const;
  Answer AskAt(const ToAsk& what, const Address& address) const;
  Answer AskNode(const ToAsk& what, const Address& address) const;
  Answer AskPage(const ToAsk& what, const Address& address) const;
  std::string AskReadiness(const std::string& kind, const std::optional<Address>& http) const;
  bool IsKnown(const SurveyedPage& page) const;
  void Take(const ToAsk& what, Answer answer);
  void FollowNode(const SurveyedNode& node);
  void FollowFrontend(const SurveyedPage& page);
  void FollowRelay(const SurveyedPage& page);

  const SurveyOptions& options_;
  Survey survey_;
  std::vector<ToAsk> wave_;
  std::set<std::pair<std::string, std::string>> seen_;  // kind and address
};

// Each kind and address once; beyond `kServicesMax` nothing is added.
void Surveyor::Add(ServiceRole role, const std::string& address, const std::string& told_by,
                   const std::string& cell) {
  if (address.empty() || seen_.size() == kServicesMax) return;
  ToAsk what{.role = role, .address = address, .told_by = told_by, .cell = cell};
  if (seen_.emplace(what.kind(), address).second) wave_.push_back(std::move(what));
}

void Surveyor::Follow(ServiceRole role, const std::string& address, const std::string& told_by,
                      const std::string& cell) {
  if (options_.follow) Add(role, address, told_by, cell);
}

// Engines come last, when all leaves and frontends that name them are known.
Survey Surveyor::Run() {
  for (const ServiceName& name : options_.services) Add(name.role, name.address.ToString(), "");
  while (!wave_.empty()) {
    const std::vector<ToAsk> wave = std::exchange(wave_, {});
    // One place per question: threads write to different elements, so no lock is needed.
    std::vector<Answer> answers(wave.size());
    AtOnce(wave.size(), [&](size_t i) { answers[i] = Ask(wave[i]); });
    for (size_t i = 0; i < wave.size(); ++i) Take(wave[i], std::move(answers[i]));
  }
  if (!options_.engines) return std::move(survey_);
  survey_.engines = EnginesNamedIn(survey_);
  AtOnce(survey_.engines.size(), [&](size_t i) {
    survey_.engines[i].facts = ProbeEngine(survey_.engines[i].url, options_.timeout);
  });
  return std::move(survey_);
}

// 1. Asks at the address. A service from the command line may have been named by its other port:
//    then it is asked there (`Located`).
// 2. Looks at TLS where nothing answered, to say why, or where certificates are to be checked.
Answer Surveyor::Ask(const ToAsk& what) const {
  const absl::StatusOr<Address> address = Address::Parse(what.address);
  Answer answer;
  if (!address.ok()) {
    answer.unreached = Unreached{.kind = what.kind(),
                                 .address = what.address,
                                 .told_by = what.told_by,
                                 .cell = what.cell,
                                 .why = address.status(),
                                 .tls = {}};
    return answer;
  }
  answer = AskAt(what, *address);
  if (what.told_by.empty() && answer.unreached.has_value() &&
      !absl::IsDeadlineExceeded(answer.unreached->why)) {
    // It may have been named by its other port.
    const absl::StatusOr<Address> other = Located(
        {what.role, *address}, what.is_node() ? Plane::kGrpc : Plane::kHttp, options_.timeout);
    if (other.ok() && *other != *address) {
      answer = AskAt(what, *other);
    } else if (absl::IsFailedPrecondition(other.status())) {
      answer.unreached->why = other.status();
    }
  }
  const bool reached = !answer.unreached.has_value();
  if (reached && options_.tls_ca.empty()) return answer;
  TlsLook tls = LookAtTls(*address, options_.tls_ca, options_.timeout);
  if (!reached) {
    answer.unreached->tls = std::move(tls);
  } else if (tls.speaks_tls) {
    answer.certificate =
        Certificate{.service = answer.node.has_value() ? answer.node->Name() : answer.page->Name(),
                    .address = what.address,
                    .tls = std::move(tls)};
  }
  return answer;
}

Answer Surveyor::AskAt(const ToAsk& what, const Address& address) const {
  return what.is_node() ? AskNode(what, address) : AskPage(what, address);
}

// "": it was not asked, or does not say.
std::string Surveyor::AskReadiness(const std::string& kind,
                                   const std::optional<Address>& http) const {
  if (!options_.readiness || !http.has_value()) return "";
  const absl::StatusOr<HttpReply> reply =
      HttpAsk(kind, *http, "GET", "/ready", "", options_.timeout);
  if (!reply.ok() || (reply->status != 200 && reply->status != 503)) return "";
  if (reply->status == 200) return "ready";
  const std::string reason =
      TextIn(Json::parse(reply->body, nullptr, /*allow_exceptions=*/false), "reason");
  return reason.empty() ? "not ready" : "not ready: " + reason;
}

// The clock is read right before and after: `CheckClocks` needs both.
Answer Surveyor::AskNode(const ToAsk& what, const Address& address) const {
  SurveyedNode node{.role = what.role, .addresses = {address.ToString()}, .stats = {}, .asked = {}};
  node.asked.before_unix_ms = UnixMs();
  absl::StatusOr<v1::StatsResponse> stats =
      HolderService(what.role, address, options_.timeout).Stats();
  node.asked.after_unix_ms = UnixMs();
  Answer answer;
  if (stats.ok()) {
    node.stats = *std::move(stats);
    node.readiness = AskReadiness(what.kind(), node.Http());
    answer.node = std::move(node);
  } else {
    answer.unreached = Unreached{.kind = what.kind(),
                                 .address = what.address,
                                 .told_by = what.told_by,
                                 .cell = what.cell,
                                 .why = stats.status(),
                                 .tls = {}};
  }
  return answer;
}

// The kind of the page is checked by a field that only it has. A frontend is asked for its
// diagnosis as well; without one the page is still good.
Answer Surveyor::AskPage(const ToAsk& what, const Address& address) const {
  const std::string kind = what.kind();
  SurveyedPage page{
      .kind = kind, .address = address.ToString(), .status = {}, .diagnosis = {}, .asked = {}};
  page.asked.before_unix_ms = UnixMs();
  const absl::StatusOr<std::string> body =
      HttpBody(kind, address, "GET", "/status", "", options_.timeout);
  page.asked.after_unix_ms = UnixMs();
  absl::Status bad = body.status();
  if (body.ok()) page.status = Json::parse(*body, nullptr, /*allow_exceptions=*/false);
  // A field that only this kind of page has.
  const char* const mark = kind == "frontend" ? "by_fallback" : "blocks_max";
  if (bad.ok() && (!page.status.is_object() || !page.status.contains(mark)))
    bad = absl::FailedPreconditionError("another kind of service answers there");
  Answer answer;
  if (!bad.ok()) {
    answer.unreached = Unreached{.kind = kind,
                                 .address = what.address,
                                 .told_by = what.told_by,
                                 .cell = {},
                                 .why = bad,
                                 .tls = {}};
    return answer;
  }
  page.readiness = AskReadiness(kind, address);
  if (kind == "frontend") {
    const absl::StatusOr<std::string> diagnosis =
        HttpBody(kind, address, "GET", "/diagnosis?format=json", "", options_.timeout);
    if (diagnosis.ok())
      page.diagnosis = Json::parse(*diagnosis, nullptr, /*allow_exceptions=*/false);
  }
  answer.page = std::move(page);
  return answer;
}

// Whether this process was asked already under another address: the same process id and start.
bool Surveyor::IsKnown(const SurveyedPage& page) const {
  const Json process = page.status.value("process", Json::object());
  return process.contains("pid") &&
         std::any_of(survey_.pages.begin(), survey_.pages.end(), [&](const SurveyedPage& other) {
           const Json known = other.status.value("process", Json::object());
           return other.kind == page.kind && known.value("pid", Json()) == process["pid"] &&
                  known.value("started_unix_ms", Json()) ==
                      process.value("started_unix_ms", Json());
         });
}

// Adds one answer and follows what it names. A process that is known gets a further address
// instead.
void Surveyor::Take(const ToAsk& what, Answer answer) {
  if (answer.certificate.has_value())
    survey_.certificates.push_back(*std::move(answer.certificate));
  if (answer.unreached.has_value()) {
    survey_.unreached.push_back(*std::move(answer.unreached));
  } else if (answer.page.has_value()) {
    if (IsKnown(*answer.page)) return;
    survey_.pages.push_back(*std::move(answer.page));
    const SurveyedPage page = survey_.pages.back();
    page.kind == "frontend" ? FollowFrontend(page) : FollowRelay(page);
  } else {
    // One process may have several addresses: told apart by process id and start.
    const v1::ProcessStats& process = answer.node->stats.process();
    for (size_t i = 0; i < survey_.nodes.size() && process.pid() != 0; ++i) {
      const v1::ProcessStats& other = survey_.nodes[i].stats.process();
      if (survey_.nodes[i].role != answer.node->role || other.pid() != process.pid() ||
          other.started_unix_ms() != process.started_unix_ms())
        continue;
      survey_.nodes[i].addresses.push_back(answer.node->addresses.front());
      survey_.node_at[what.address] = i;
      return;
    }
    survey_.node_at[what.address] = survey_.nodes.size();
    survey_.node_at[answer.node->addresses.front()] = survey_.nodes.size();
    survey_.nodes.push_back(*std::move(answer.node));
    const SurveyedNode node = survey_.nodes.back();
    FollowNode(node);
  }
}

// The addresses in a list of parents: "HOST:PORT,…" or "NAME=HOST:PORT|HOST:PORT,…". Places where
// they are found otherwise (DNS, Redis) are no addresses.
std::vector<std::string> AddressesIn(const std::string& parents) {
  std::vector<std::string> addresses;
  for (const absl::string_view entry : absl::StrSplit(parents, ',', absl::SkipEmpty())) {
    const absl::string_view of = entry.substr(entry.find('=') + 1);  // all of it without a name
    for (const absl::string_view address : absl::StrSplit(of, '|', absl::SkipEmpty()))
      if (Address::Parse({address.data(), address.size()}).ok()) addresses.emplace_back(address);
  }
  return addresses;
}

// A leaf names its parents; one inside of `serve` also its frontend. A node names its parents and
// everything that reports to it.
void Surveyor::FollowNode(const SurveyedNode& node) {
  // Streams to parents begin with the first block.
  for (const std::string& parent : AddressesIn(node.Flag("parents")))
    Follow(ServiceRole::kHierarchy, parent, node.Name());
  for (const v1::ParentStats& parent : node.stats.parents())
    Follow(ServiceRole::kHierarchy, parent.address(), node.Name());
  if (node.is_leaf()) {
    // A leaf in `serve`: the frontend there has the port "http".
    const auto frontend = ListensAt(node, "http");
    if (ListensAt(node, kLeafHttp).has_value() && frontend.has_value())
      Follow(ServiceRole::kFrontend, frontend->ToString(), node.Name());
    return;
  }
  for (const v1::DomainStats& domain : node.stats.domains()) {
    for (const v1::HolderStats& holder : domain.holder_stats()) {
      const auto label = holder.labels().find(kKindLabel);
      const bool is_node = label != holder.labels().end() && label->second == kKindNode;
      Follow(is_node ? ServiceRole::kHierarchy : ServiceRole::kLeaf, holder.address(), node.Name(),
             holder.holder().name());
    }
  }
}

// Hierarchy nodes and leaves of its flags and of what it was told.
void Surveyor::FollowFrontend(const SurveyedPage& page) {
  for (const Json& address : ListIn(page.status, "hierarchies"))
    if (address.is_string())
      Follow(ServiceRole::kHierarchy, address.get<std::string>(), page.Name());
  const absl::StatusOr<Address> asked = Address::Parse(page.address);
  if (asked.ok()) {
    if (const auto leaf = ListensAt(page.status, "leaf_grpc", *asked); leaf.has_value())
      Follow(ServiceRole::kLeaf, leaf->ToString(), page.Name());
  }
  for (const Json& leaf : ListIn(page.status, "leaves")) {
    const std::string text = leaf.is_string() ? leaf.get<std::string>() : "";
    const size_t equals = text.find('=');
    if (equals != std::string::npos)
      Follow(ServiceRole::kLeaf, text.substr(equals + 1), page.Name(), text.substr(0, equals));
  }
}

void Surveyor::FollowRelay(const SurveyedPage& page) {
  for (const Json& leaf : ListIn(page.status, "leaves"))
    if (leaf.is_string() && Address::Parse(leaf.get<std::string>()).ok())
      Follow(ServiceRole::kLeaf, leaf.get<std::string>(), page.Name());
}

// ---- Engines ----

// Adds an engine, or merges it with the one of the same url: ranks of one worker, and replicas of a
// leaf, name one engine several times.
void AddEngine(SurveyedEngine engine, std::vector<SurveyedEngine>* engines) {
  for (SurveyedEngine& known : *engines) {
    if (known.url != engine.url) continue;
    known.of.push_back(std::move(engine.of.front()));
    // The most that any leaf has heard of it.
    if (engine.batches.has_value())
      known.batches = std::max(known.batches.value_or(0), *engine.batches);
    return;
  }
  engines->push_back(std::move(engine));
}

// Until an engine's first block is announced its leaf has no block size of it, and its domain a
// provisional one.
bool IsLearning(const v1::HolderStats& holder) {
  return holder.has_engine() && holder.engine().block_size() == 0;
}

}  // namespace

std::string SurveyedNode::Name() const {
  std::string name = absl::StrCat(is_leaf() ? "leaf " : "hierarchy ", addresses.front(), " (",
                                  is_leaf() ? "cell " : "node ", stats.cell());
  if (!stats.replica().empty()) absl::StrAppend(&name, "@", stats.replica());
  return name + ")";
}

std::string SurveyedNode::Flag(const std::string& name) const {
  for (const v1::FlagStats& flag : stats.process().flags())
    if (flag.name() == name) return flag.value();
  return "";
}

std::optional<Address> SurveyedNode::Http() const {
  const std::optional<Address> in_serve = ListensAt(*this, kLeafHttp);
  return in_serve.has_value() ? in_serve : ListensAt(*this, "http");
}

size_t Survey::Count(const std::string& kind) const {
  size_t count = 0;
  for (const SurveyedNode& node : nodes) count += (node.is_leaf() ? "leaf" : "hierarchy") == kind;
  for (const SurveyedPage& page : pages) count += page.kind == kind;
  return count;
}

const SurveyedNode* Survey::NodeAt(const std::string& address) const {
  const auto found = node_at.find(address);
  return found == node_at.end() ? nullptr : &nodes[found->second];
}

// Leaves first, as they know block size and events; then engines that only frontends name.
std::vector<SurveyedEngine> EnginesNamedIn(const Survey& survey) {
  std::vector<SurveyedEngine> engines;
  std::map<std::string, std::string> given;  // urls that frontends were told, by worker
  for (const SurveyedPage& page : survey.pages)
    for (const Json& engine : ListIn(page.status, "engines"))
      given.emplace(TextIn(engine, "worker"), TextIn(engine, "url"));
  for (const SurveyedNode& node : survey.nodes) {
    if (!node.is_leaf()) continue;
    for (const v1::DomainStats& domain : node.stats.domains()) {
      for (const v1::HolderStats& holder : domain.holder_stats()) {
        const std::string& worker = holder.holder().name();
        const auto label = holder.labels().find("url");
        std::string url = label == holder.labels().end() ? "" : label->second;
        // By name alone: the same worker name in two cells would get one url, which is what the
        // flag says, too.
        if (const auto of = given.find(worker); url.empty() && of != given.end()) url = of->second;
        if (url.empty()) continue;
        AddEngine({.url = url,
                   .of = {absl::StrCat("worker ", worker, " of ", node.Name())},
                   .model = domain.domain().model(),
                   .block_size = IsLearning(holder) ? 0 : domain.block_size(),
                   .batches = holder.batches(),
                   .in_serve = node.in_serve()},
                  &engines);
      }
    }
  }
  for (const SurveyedPage& page : survey.pages) {
    for (const Json& engine : ListIn(page.status, "engines")) {
      const std::string url = TextIn(engine, "url");
      // Compared as texts: two spellings of one address are two engines.
      const bool is_known = std::any_of(engines.begin(), engines.end(),
                                        [&](const auto& known) { return known.url == url; });
      if (url.empty() || is_known) continue;
      AddEngine({.url = url,
                 .of = {absl::StrCat("worker ", TextIn(engine, "worker"), " of ", page.Name())},
                 .model = TextIn(engine, "model")},
                &engines);
    }
  }
  return engines;
}

Survey LookAround(const SurveyOptions& options) { return Surveyor(options).Run(); }

std::string TextIn(const Json& json, const char* field) {
  if (!json.is_object()) return "";
  const auto found = json.find(field);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

const Json& ListIn(const Json& json, const char* field) {
  static const Json& none = *new Json(Json::array());
  if (!json.is_object()) return none;
  const auto found = json.find(field);
  return found != json.end() && found->is_array() ? *found : none;
}

}  // namespace kvatlas
