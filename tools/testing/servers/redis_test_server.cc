#include "tools/testing/servers/redis_test_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

namespace kvatlas {
namespace {

constexpr std::chrono::seconds kStartTimeout(30);
constexpr std::chrono::milliseconds kLookEvery(5);
constexpr int kPortsTried = 20;

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "redis-server for tests: %s\n", why.c_str());
  std::abort();
}

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

// The socket that listens on a port of this host, by its inode as /proc says; empty: none does.
std::string ListenerOn(uint16_t port) {
  constexpr int kListens = 0x0A;
  std::ifstream table("/proc/net/tcp");
  std::string line;
  while (std::getline(table, line)) {
    unsigned found = 0, state = 0;
    unsigned long inode = 0;
    // sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode
    if (std::sscanf(line.c_str(), " %*u: %*8X:%4X %*8X:%*4X %2X %*X:%*X %*X:%*X %*X %*u %*u %lu",
                    &found, &state, &inode) == 3 &&
        found == port && state == kListens) {
      return "socket:[" + std::to_string(inode) + "]";
    }
  }
  return "";
}

bool Has(pid_t pid, const std::string& socket) {
  std::error_code error;
  for (const auto& file :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", error)) {
    std::error_code ignored;
    if (std::filesystem::read_symlink(file.path(), ignored) == socket) return true;
  }
  return false;
}

}  // namespace

uint16_t RedisTestServer::FreePort() { return ReservedTestPorts().HoldAny().port; }

RedisTestServer::RedisTestServer(std::vector<std::string> config) : config_(std::move(config)) {
  const char* root = std::getenv("TEST_TMPDIR");
  std::string pattern = std::string(root == nullptr ? "/tmp" : root) + "/redis.XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) Die("cannot make " + pattern);
  directory_ = pattern;
  Start();
}

RedisTestServer::~RedisTestServer() {
  Kill();
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

void RedisTestServer::Start() {
  if (pid_ != 0) return;
  const bool new_port = port_ == 0;
  for (int i = 0; i < kPortsTried; ++i) {
    if (new_port) port_ = held_.HoldAny().port;
    Launch();
    const auto until = std::chrono::steady_clock::now() + kStartTimeout;
    while (std::chrono::steady_clock::now() < until) {
      if (Answers() && Has(pid_, ListenerOn(port_))) return;
      if (waitpid(pid_, nullptr, WNOHANG) == pid_) {
        pid_ = 0;
        break;  // another port that its configuration names was taken, as that of a cluster's bus
      }
      std::this_thread::sleep_for(kLookEvery);
    }
    Kill();
  }
  Die("does not start; is it installed? See " + directory_ + "/log");
}

void RedisTestServer::Launch() {
  const std::string path = directory_ + "/redis.conf";
  std::ofstream config(path);
  config << "port " << port_ << "\nbind 127.0.0.1\ndaemonize no\nsave \"\"\nappendonly no\ndir "
         << directory_ << "\nlogfile " << directory_ << "/log\n";
  bool sentinel = false;
  for (const std::string& line : config_) {
    config << line << "\n";
    sentinel = sentinel || line.rfind("sentinel monitor", 0) == 0;
  }
  config.close();
  if (!config) Die("cannot write " + path);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0) Die("cannot fork");
  if (pid_ > 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  const int null = open("/dev/null", O_RDWR);
  dup2(null, STDIN_FILENO);
  dup2(null, STDOUT_FILENO);
  const char* const server = std::getenv("KVATLAS_REDIS_SERVER");
  const char* const program = server == nullptr ? "redis-server" : server;
  execlp(program, program, path.c_str(), sentinel ? "--sentinel" : nullptr, nullptr);
  _exit(127);
}

bool RedisTestServer::Answers() const {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(port_);
  constexpr char kPing[] = "PING\r\n";
  char answer = 0;
  bool answers = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
                 send(fd, kPing, sizeof(kPing) - 1, MSG_NOSIGNAL) > 0 && read(fd, &answer, 1) == 1;
  if (answers && answer == '-') {
    char text[7] = {};
    answers = read(fd, text, sizeof(text)) == sizeof(text) &&
              std::string(text, sizeof(text)) != "LOADING";
  }
  close(fd);
  return answers;
}

void RedisTestServer::End(int signal) {
  if (pid_ == 0) return;
  kill(pid_, signal);
  kill(pid_, SIGCONT);
  waitpid(pid_, nullptr, 0);
  pid_ = 0;
}

void RedisTestServer::Kill() { End(SIGKILL); }
void RedisTestServer::Terminate() { End(SIGTERM); }
void RedisTestServer::Pause() { kill(pid_, SIGSTOP); }
void RedisTestServer::Resume() { kill(pid_, SIGCONT); }

}  // namespace kvatlas
