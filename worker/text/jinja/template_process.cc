#include "worker/text/jinja/template_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/caller_gone.h"
#include "proto/utf8.h"
#include "worker/model/model_json.h"

namespace hearth {

extern const char kRenderChats[];  // the text of render_chats.py

namespace {

using Json = nlohmann::json;

constexpr int kPollMs = 20;       // time between two calls of `stopped`
constexpr size_t kHeadBytes = 4;  // a message's length
// Longest error message of a template.
constexpr size_t kMaxWordsBytes = 300;
constexpr char kNeedsJinja[] =
    "needs Python's Jinja to render chats: install it (apt install python3-jinja2) and start the "
    "worker again";

// An answer has the rendered text: the texts of the request, and the text that the template adds.
size_t MaxAnswerBytes(size_t request_bytes) { return 4 * request_bytes + (size_t{1} << 20); }

// Returns the first words of a template's error message in one line.
std::string FirstWords(const std::string& message) {
  std::string words = message.substr(0, kMaxWordsBytes);
  words.resize(FindInvalidUtf8(words).value_or(words.size()));  // no part of a character
  std::replace_if(
      words.begin(), words.end(),
      [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); }, ' ');
  return words;
}

// Returns the value of an answer, or the error that it reports.
absl::StatusOr<Json> ValueOf(const std::string& answer) {
  absl::StatusOr<Json> json = ParseModelJson(answer);
  if (!json.ok() || !json->is_object())
    return absl::UnavailableError("sent an answer that is not a JSON object");
  if (!JsonAt(*json, {"missing"}).is_null()) return absl::FailedPreconditionError(kNeedsJinja);
  const Json& error = JsonAt(*json, {"error"});
  if (error.is_string())
    return absl::InvalidArgumentError(absl::StrCat("says: ", FirstWords(error)));
  return json;
}

}  // namespace

TemplateProcess::TemplateProcess(Json setup, const TemplateLimits& limits) : limits_(limits) {
  setup["memory_bytes"] = limits.memory_bytes;
  setup["cpu_s"] = absl::ToDoubleSeconds(limits.cpu);
  setup_ = setup.dump(-1, ' ', false, Json::error_handler_t::replace);
}

TemplateProcess::~TemplateProcess() { End(absl::OkStatus()).IgnoreError(); }

pid_t TemplateProcess::pid() const {
  absl::MutexLock lock(&mutex_);
  return pid_;
}

bool TemplateProcess::Enter(const std::function<bool()>& stopped) {
  absl::MutexLock lock(&mutex_);
  while (
      !mutex_.AwaitWithTimeout(absl::Condition(&is_free_), absl::Milliseconds(int64_t{kPollMs}))) {
    if (stopped && stopped()) return false;
  }
  is_free_ = false;
  return true;
}

void TemplateProcess::Leave() {
  absl::MutexLock lock(&mutex_);
  is_free_ = true;
}

absl::StatusOr<Json> TemplateProcess::Start() {
  Enter(nullptr);
  absl::StatusOr<Json> answer = StartChild(nullptr);
  Leave();
  return answer;
}

absl::StatusOr<Json> TemplateProcess::Ask(const Json& request,
                                          const std::function<bool()>& stopped) {
  const std::string text = request.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (!Enter(stopped)) return CallerGone();
  absl::StatusOr<Json> answer = Json();
  if (!IsRunning()) {
    answer = StartChild(stopped);
    if (!answer.ok()) answer = End(answer.status());  // the child has no template
  }
  if (answer.ok()) answer = Exchange(text, stopped);
  Leave();
  return answer;
}

bool TemplateProcess::IsRunning() {
  if (socket_ < 0) return false;
  // A child sends nothing between two requests, so the socket is readable only if the child has
  // ended.
  pollfd state{socket_, POLLIN, 0};
  if (poll(&state, 1, 0) == 0) return true;
  End(absl::OkStatus()).IgnoreError();
  return false;
}

absl::StatusOr<Json> TemplateProcess::StartChild(const std::function<bool()>& stopped) {
  if (absl::Status spawned = Spawn(); !spawned.ok()) return spawned;
  return Exchange(setup_, stopped);
}

absl::StatusOr<Json> TemplateProcess::Exchange(const std::string& request,
                                               const std::function<bool()>& stopped) {
  const absl::Time deadline = absl::Now() + limits_.wait;
  std::string sent(kHeadBytes, '\0');
  for (size_t i = 0; i < kHeadBytes; ++i)
    sent[i] = static_cast<char>(request.size() >> 8 * (kHeadBytes - 1 - i) & 0xFF);
  sent += request;
  char head[kHeadBytes] = {};
  // If Jinja is missing, the child answers and ends before it has read the request, so sending may
  // fail.
  const absl::Status sending = Move(/*sends=*/true, &sent[0], sent.size(), deadline, stopped);
  absl::Status status = sending;
  if (sending.ok() || absl::IsUnavailable(sending))
    status = Move(/*sends=*/false, head, kHeadBytes, deadline, stopped);
  size_t size = 0;
  for (const char c : head) size = size << 8 | static_cast<unsigned char>(c);
  if (status.ok() && size > MaxAnswerBytes(request.size()))
    status = absl::UnavailableError(absl::StrCat("sent an answer of ", size, " bytes"));
  std::string answer;
  if (status.ok()) {
    answer.resize(size);
    status = Move(/*sends=*/false, &answer[0], size, deadline, stopped);
  }
  if (!status.ok()) return End(status);
  absl::StatusOr<Json> value = ValueOf(answer);
  if (absl::IsUnavailable(value.status())) return End(value.status());
  return value;
}

absl::Status TemplateProcess::Move(bool sends, char* bytes, size_t size, absl::Time deadline,
                                   const std::function<bool()>& stopped) const {
  for (size_t done = 0; done < size;) {
    const ssize_t moved = sends ? send(socket_, bytes + done, size - done, MSG_NOSIGNAL)
                                : recv(socket_, bytes + done, size - done, 0);
    if (moved > 0) {
      done += static_cast<size_t>(moved);
      continue;
    }
    if (moved == 0 || (errno != EAGAIN && errno != EINTR)) return absl::UnavailableError("ended");
    if (stopped && stopped()) return CallerGone();
    if (absl::Now() >= deadline) {
      return absl::UnavailableError(
          absl::StrCat("gave no answer in ", absl::FormatDuration(limits_.wait)));
    }
    pollfd state{socket_, static_cast<short>(sends ? POLLOUT : POLLIN), 0};
    poll(&state, 1, kPollMs);
  }
  return absl::OkStatus();
}

absl::Status TemplateProcess::Spawn() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return absl::UnavailableError(absl::StrCat("has no socket: ", std::strerror(errno)));
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  sigset_t signals;
  posix_spawn_file_actions_init(&files);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&files, ends[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
  posix_spawn_file_actions_addchdir_np(&files, "/");
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  sigfillset(&signals);
  posix_spawnattr_setsigdefault(&attributes, &signals);
  // Its own process group: Ctrl-C ends the worker, which then ends the child.
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  // -I: Python loads no module of a user's folder. -B: Python writes no bytecode.
  const char* arguments[] = {limits_.python, "-I", "-B", "-c", kRenderChats, nullptr};
  char* no_environment[] = {nullptr};
  pid_t child = -1;
  const int failed = posix_spawn(&child, limits_.python, &files, &attributes,
                                 const_cast<char**>(arguments), no_environment);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  close(ends[1]);
  if (failed != 0) {
    close(ends[0]);
    if (failed == ENOENT) return absl::FailedPreconditionError(kNeedsJinja);
    return absl::UnavailableError(absl::StrCat("cannot start: ", std::strerror(failed)));
  }
  socket_ = ends[0];
  absl::MutexLock lock(&mutex_);
  pid_ = child;
  return absl::OkStatus();
}

absl::Status TemplateProcess::End(const absl::Status& why) {
  if (socket_ < 0) return why;
  close(socket_);
  socket_ = -1;
  absl::MutexLock lock(&mutex_);
  const pid_t child = std::exchange(pid_, -1);
  assert(child > 0);
  kill(child, SIGKILL);
  int state = 0;
  while (waitpid(child, &state, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(state) && WTERMSIG(state) == SIGPROF) {
    return absl::InvalidArgumentError(
        absl::StrCat("took more than ", absl::FormatDuration(limits_.cpu), " of CPU time"));
  }
  return why;
}

}  // namespace hearth
