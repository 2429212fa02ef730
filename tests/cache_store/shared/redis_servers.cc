#include "tests/cache_store/shared/redis_servers.h"

#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace hearth {
namespace {

constexpr char kServer[] = "/usr/bin/redis-check-rdb";
constexpr int kSlots = 16384;
// limit of attempts: another process may take a port after it was chosen
constexpr int kStartsAtMost = 10;
constexpr timeval kAnswerTime = {60, 0};
constexpr absl::Duration kRestartTime = absl::Minutes(2);

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "redis servers: %s\n", what.c_str());
  std::abort();
}

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), bytes) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) {
    Fail("no free port");
  }
  close(fd);
  return ntohs(address.sin_port);
}

std::string TextOf(const redisReply* reply) {
  switch (reply->type) {
    case REDIS_REPLY_ERROR:
      return absl::StrCat("-", std::string(reply->str, reply->len));
    case REDIS_REPLY_INTEGER:
      return absl::StrCat(reply->integer);
    case REDIS_REPLY_NIL:
      return "";
    case REDIS_REPLY_ARRAY: {
      std::string text;
      for (size_t i = 0; i < reply->elements; ++i) {
        absl::StrAppend(&text, i == 0 ? "" : " ", TextOf(reply->element[i]));
      }
      return text;
    }
    default:
      return std::string(reply->str, reply->len);
  }
}

}  // namespace

bool RedisProcess::IsInstalled() { return access(kServer, X_OK) == 0; }

RedisProcess::RedisProcess(const std::string& folder, Options options)
    : folder_(folder), options_(std::move(options)) {
  for (int start = 0; start < kStartsAtMost; ++start) {
    ChoosePorts();
    Spawn();
    if (WaitUntilItAnswers()) return;
    Kill();
  }
  Fail(absl::StrCat("none starts in ", folder_));
}

RedisProcess::~RedisProcess() { Kill(); }

void RedisProcess::ChoosePorts() {
  port_ = FreePort();
  if (options_.has_tls) tls_port_ = FreePort();
  if (options_.is_cluster) bus_port_ = FreePort();
}

void RedisProcess::Spawn() {
  std::vector<std::string> words = {"redis-server",
                                    "--port",
                                    absl::StrCat(port_),
                                    "--bind",
                                    "127.0.0.1",
                                    "--save",
                                    "",
                                    "--logfile",
                                    "redis.log",
                                    "--repl-diskless-sync-delay",
                                    "0",
                                    "--dir",
                                    folder_};
  if (options_.has_tls) {
    words.insert(words.end(), {"--tls-port", absl::StrCat(tls_port_)});
  }
  if (options_.is_cluster) {
    words.insert(words.end(), {"--repl-ping-replica-period", "1", "--cluster-enabled", "yes",
                               "--cluster-port", absl::StrCat(bus_port_), "--cluster-node-timeout",
                               "30000", "--cluster-require-full-coverage", "no"});
  }
  words.insert(words.end(), options_.settings.begin(), options_.settings.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int nowhere = open("/dev/null", O_RDWR);
    for (const int fd : {0, 1, 2}) dup2(nowhere, fd);
    execv(kServer, argv.data());
    _exit(127);
  }
  if (pid_ < 0) Fail("no process");
  pid_fd_ = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
}

void RedisProcess::Pause() const {
  pollfd end = {pid_fd_, POLLIN, 0};
  poll(&end, 1, 10);
}

bool RedisProcess::WaitUntilItAnswers() const {
  for (;;) {
    // If the server of another test has taken the port, that server answers, and this server ends.
    const std::string answer = Ask({"INFO", "server"});
    if (absl::StrContains(answer, absl::StrCat("process_id:", pid_, "\r\n"))) return true;
    if (absl::StartsWith(answer, "-NOAUTH")) return true;
    Pause();
    siginfo_t ended = {};
    if (waitid(P_PID, pid_, &ended, WEXITED | WNOHANG | WNOWAIT) != 0) return false;
    if (ended.si_pid != 0) return false;
  }
}

std::string RedisProcess::Ask(const std::vector<std::string>& words) const {
  const std::unique_ptr<redisContext, void (*)(redisContext*)> context(
      redisConnectWithTimeout("127.0.0.1", port_, kAnswerTime), redisFree);
  if (context == nullptr || context->err != 0) return "-it is not reached";
  redisSetTimeout(context.get(), kAnswerTime);
  std::vector<const char*> texts;
  std::vector<size_t> sizes;
  for (const std::string& word : words) {
    texts.push_back(word.data());
    sizes.push_back(word.size());
  }
  const std::unique_ptr<redisReply, void (*)(void*)> reply(
      static_cast<redisReply*>(redisCommandArgv(context.get(), static_cast<int>(words.size()),
                                                texts.data(), sizes.data())),
      freeReplyObject);
  return reply == nullptr ? "-it does not answer" : TextOf(reply.get());
}

void RedisProcess::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  close(pid_fd_);
  pid_ = -1;
  is_stopped_ = false;
}

void RedisProcess::Start() {
  if (pid_ > 0) Fail("started twice");
  // If a connection of another process has taken the port, the port is free again after a short
  // time.
  const absl::Time limit = absl::Now() + kRestartTime;
  for (Spawn(); !WaitUntilItAnswers(); Spawn()) {
    Kill();
    if (absl::Now() > limit) Fail(absl::StrCat("it does not start again in ", folder_));
  }
}

void RedisProcess::Stop() {
  kill(pid_, SIGSTOP);
  is_stopped_ = true;
}

void RedisProcess::Continue() {
  kill(pid_, SIGCONT);
  is_stopped_ = false;
}

RedisServers::RedisServers(Options options) : options_(std::move(options)) {
  for (int i = 0; i < options_.primaries; ++i) {
    AddServer();
    // Give each node its own config epoch; otherwise the nodes would first have to agree on them.
    at(i).Ask({"CLUSTER", "SET-CONFIG-EPOCH", absl::StrCat(i + 1)});
    at(i).Ask({"CLUSTER", "ADDSLOTSRANGE", absl::StrCat(kSlots * i / options_.primaries),
               absl::StrCat(kSlots * (i + 1) / options_.primaries - 1)});
    Meet(i);
  }
  AddReplicas();
}

int RedisServers::AddServer() {
  const int number = size();
  const std::string folder = folder_.File(absl::StrCat("node-", number));
  std::filesystem::create_directory(folder);
  servers_.push_back(std::make_unique<RedisProcess>(
      folder, RedisProcess::Options{true, options_.has_tls, options_.settings}));
  return number;
}

void RedisServers::Meet(int number) {
  if (number > 0) {
    at(number).Ask({"CLUSTER", "MEET", "127.0.0.1", absl::StrCat(at(0).port()),
                    absl::StrCat(at(0).bus_port())});
  }
}

void RedisServers::AddReplicas() {
  const int all = options_.primaries * (1 + options_.replicas);
  while (size() < all) Meet(AddServer());
  WaitUntilKnown();
  for (int i = options_.primaries; i < all; ++i) {
    const std::string primary = IdOf(i % options_.primaries);
    while (at(i).Ask({"CLUSTER", "REPLICATE", primary}) != "OK") at(i).Pause();
  }
  WaitUntilAllSlotsAreServed();
  for (int i = options_.primaries; i < all; ++i) {
    while (!absl::StrContains(at(i).Ask({"INFO", "replication"}), "master_link_status:up")) {
      at(i).Pause();
    }
    // Wait until each primary knows the replica, or the replica would not be elected. A replica
    // appears in CLUSTER SLOTS after its primary has sent it any bytes, at least a ping.
    for (int other = 0; other < options_.primaries; ++other) {
      const std::string id = IdOf(i);
      while (!absl::StrContains(at(other).Ask({"CLUSTER", "SLOTS"}), id)) at(other).Pause();
    }
  }
}

void RedisServers::WaitUntilKnown() const {
  const std::string all = absl::StrCat("cluster_known_nodes:", servers_.size(), "\r\n");
  for (const auto& server : servers_) {
    while (!absl::StrContains(server->Ask({"CLUSTER", "INFO"}), all)) server->Pause();
  }
}

void RedisServers::WaitUntilAllSlotsAreServed() const {
  for (const auto& server : servers_) {
    if (!server->IsRunning()) continue;
    for (;;) {
      const std::string info = server->Ask({"CLUSTER", "INFO"});
      if (absl::StrContains(info, "cluster_state:ok") &&
          absl::StrContains(info, absl::StrCat("cluster_slots_ok:", kSlots, "\r\n"))) {
        break;
      }
      server->Pause();
    }
  }
}

void RedisServers::DetectFailuresFast() const {
  for (const auto& server : servers_) {
    if (server->IsAnswering()) server->Ask({"CONFIG", "SET", "cluster-node-timeout", "1000"});
  }
}

std::string RedisServers::IdOf(int number) const {
  return servers_.at(number)->Ask({"CLUSTER", "MYID"});
}

std::string RedisServers::addresses() const {
  std::string addresses;
  for (int i = 0; i < options_.primaries; ++i) {
    absl::StrAppend(&addresses, i == 0 ? "" : ",", servers_[i]->address());
  }
  return addresses;
}

int RedisServers::ShareOf(int slot) const {
  int number = 0;
  while (slot >= kSlots * (number + 1) / options_.primaries) ++number;
  return number;
}

int RedisServers::AddPrimary() {
  const int number = AddServer();
  Meet(number);
  WaitUntilKnown();
  WaitUntilAllSlotsAreServed();
  return number;
}

void RedisServers::MoveSlot(int slot, int from, int to) {
  const std::string number = absl::StrCat(slot), to_port = absl::StrCat(at(to).port());
  at(to).Ask({"CLUSTER", "SETSLOT", number, "IMPORTING", IdOf(from)});
  at(from).Ask({"CLUSTER", "SETSLOT", number, "MIGRATING", IdOf(to)});
  for (;;) {
    const std::string key = at(from).Ask({"CLUSTER", "GETKEYSINSLOT", number, "1"});
    if (key.empty()) break;
    at(from).Ask({"MIGRATE", "127.0.0.1", to_port, key, "0", "60000", "REPLACE"});
  }
  for (const int server : {to, from}) {
    at(server).Ask({"CLUSTER", "SETSLOT", number, "NODE", IdOf(to)});
  }
}

}  // namespace hearth
