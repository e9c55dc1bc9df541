#include "tests/programs.h"

#include <arpa/inet.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_replace.h"
#include "indexer/base/address.h"
#include "indexer/net/grpc_channel.h"
#include "indexer/net/grpc_status.h"
#include "tools/bench/service_bench_http.h"
#include "tools/testing/mock_engine/engine.grpc.pb.h"
#include "tools/testing/mock_engine/engine_model.h"

namespace kvatlas {
namespace {

namespace ev1 = engine::v1;

constexpr std::chrono::seconds kLong(60);

struct Kind {
  std::string binary;
  std::vector<std::string> args;
};

const std::map<std::string, Kind>& Kinds() {
  const std::string grpc = "--grpc=127.0.0.1:0", http = "--http=127.0.0.1:0";
  static const auto& kinds = *new std::map<std::string, Kind>{
      {"leaf", {"indexer/leaf/kvatlas-leaf", {grpc, http}}},
      {"hierarchy", {"hierarchy/kvatlas-hierarchy", {grpc, http}}},
      {"frontend", {"frontend/kvatlas-frontend", {grpc, http}}},
      {"relay", {"publisher/kvatlas-relay", {http}}},
      {"engine", {"tools/testing/mock_engine/mock_engine", {grpc, "--capacity=60"}}},
      {"zmq_engine",
       {"tools/testing/mock_engine/mock_engine",
        {grpc, "--capacity=60", "--zmq_events=tcp://127.0.0.1:0", "--zmq_replay=tcp://127.0.0.1:0",
         "--zmq_attach=bind"}}}};
  return kinds;
}

}  // namespace

DeadPort::DeadPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (bind(fd_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    std::abort();
  address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

DeadPort::~DeadPort() { close(fd_); }

Programs::Programs(std::string test) : test_(std::move(test)) {}

std::string Programs::Filled(std::string text) const {
  text = absl::StrReplaceAll(text, {{"{dead}", dead_.address()}});
  for (const auto& [name, value] : texts_) text = absl::StrReplaceAll(text, {{name, value}});
  for (const auto& [name, process] : processes_)
    for (const char* what : {"grpc", "http", "zmq_events", "zmq_replay"})
      text = absl::StrReplaceAll(text, {{"{" + name + ":" + what + "}", process->address(what)}});
  return text;
}

std::string Programs::LogFileOf(const std::string& name) const {
  return std::string(std::getenv("TEST_TMPDIR")) + "/" + test_ + "." + name + ".log";
}

absl::Status Programs::Start(const Program& program) {
  const Kind& kind = Kinds().at(program.kind);
  std::vector<std::string> args = kind.args;
  for (const std::string& arg : program.args) args.push_back(Filled(arg));
  args.push_back("--exit_with_parent=true");
  (void)std::remove(LogFileOf(program.name).c_str());
  const std::string name = kind.binary.substr(kind.binary.rfind('/') + 1);
  auto process = std::make_unique<Process>(
      ProcessOptions{.name = program.name,
                     .binary = program.folder.empty() ? kind.binary : program.folder + "/" + name,
                     .args = std::move(args),
                     .log = LogFileOf(program.name)});
  const absl::Status started = process->Start(kLong);
  if (!started.ok()) return started;
  processes_[program.name] = std::move(process);
  return program.prefills ? Prefill(program) : absl::OkStatus();
}

absl::Status Programs::Restart(const Program& program) {
  Process& process = Of(program.name);
  process.Kill();
  const absl::Status started = process.Start(kLong);
  return started.ok() && program.prefills ? Prefill(program) : started;
}

void Programs::Stop(const std::string& name) { Of(name).Stop(kLong); }

// A prompt of two blocks.
absl::Status Programs::Prefill(const Program& engine) const {
  constexpr std::string_view kFlag = "--block_size=";
  uint32_t block_size = 64;  // the mock engine's own
  for (const std::string& arg : engine.args)
    if (arg.starts_with(kFlag)) block_size = std::stoul(arg.substr(kFlag.size()));
  const auto stub = ev1::Engine::NewStub(MakeChannel(processes_.at(engine.name)->address("grpc")));
  ev1::SubmitRequest request;
  request.set_id(1);
  request.set_prompt_tokens(2 * block_size);
  for (uint64_t block = 1; block <= 2; ++block) request.add_blocks(block);
  grpc::ClientContext context;
  ev1::StepResponse response;
  const grpc::Status submitted = stub->Submit(&context, request, &response);
  if (!submitted.ok()) return FromGrpcStatus(submitted);
  ev1::AdvanceRequest all;
  all.set_time_ms(EngineModel::kForever);
  grpc::ClientContext advance;
  const grpc::Status advanced = stub->Advance(&advance, all, &response);
  if (!advanced.ok() || !engine.heard) return FromGrpcStatus(advanced);
  ev1::WaitAcknowledgedRequest patience;
  patience.set_timeout_ms(static_cast<uint32_t>(std::chrono::milliseconds(kLong).count()));
  grpc::ClientContext waits;
  ev1::WaitAcknowledgedResponse heard;
  const grpc::Status waited = stub->WaitAcknowledged(&waits, patience, &heard);
  if (!waited.ok()) return FromGrpcStatus(waited);
  return heard.acknowledged() ? absl::OkStatus()
                              : absl::DeadlineExceededError(engine.name + " is not heard");
}

std::string Programs::Log(const std::string& name) const {
  std::ifstream log(LogFileOf(name));
  return {std::istreambuf_iterator<char>(log), std::istreambuf_iterator<char>()};
}

std::string Programs::Get(const std::string& name, const std::string& path) const {
  HttpClient http(*Address::Parse(processes_.at(name)->address("http")));
  const absl::StatusOr<HttpAnswer> answer = http.Get(path);
  return answer.ok() ? answer->body : answer.status().ToString();
}

}  // namespace kvatlas
