#include "services/events/events_program.h"

#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "services/cli/command_line.h"
#include "services/cli/connection.h"
#include "services/cli/version.h"
#include "services/events/event_feed.h"
#include "services/events/event_sockets.h"
#include "services/events/store_follower.h"

namespace hearth {
namespace {

constexpr char kEventsExamples[] =
    R"(  hearth-events                                       (for routers on this host)
  hearth-events --topic kv@10.0.0.5@gemma-3-1b     (as llm-d names a pod and its model)
  hearth-events --zmq 'tcp://*:5557' --replay 'tcp://*:5558' --fingerprint 3fa94c21
Runs until it is stopped. A block is a chunk (128 tokens unless the worker says otherwise: set the
router's block size to it); reported are the blocks of restore points that end at one. Who begins
to listen late, or missed some, asks at --replay for the rest, or for everything.
Whoever can connect reads the tenant's prompts: ZeroMQ asks nobody who he is.
)";

struct EventsFlags {
  PeerFlags store{PeerKind::kStore, "", {}, ""};
  EventSocketOptions sockets{"tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558", ""};
  EventFeedOptions feed;
  uint32_t replay_mib = 256;
  uint32_t high_water = 1000;
};

// SIGINT and SIGTERM as something to wait for. Before other threads start: they inherit the mask.
class StopSignals {
 public:
  StopSignals() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, &previous_mask_);
    fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  }
  ~StopSignals() {
    signalfd_siginfo taken;
    while (read(fd_, &taken, sizeof(taken)) > 0) {
    }
    close(fd_);
    pthread_sigmask(SIG_SETMASK, &previous_mask_, nullptr);
  }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  int fd() const { return fd_; }
  // Whether SIGINT came, and no SIGTERM before it.
  bool Interrupted() {
    signalfd_siginfo taken;
    return read(fd_, &taken, sizeof(taken)) > 0 && taken.ssi_signo == SIGINT;
  }

 private:
  int fd_ = -1;
  sigset_t previous_mask_;
};

int RunEvents(const EventsFlags& flags, Console& console) {
  EventFeedOptions options = flags.feed;
  options.max_batch_bytes = uint64_t{flags.replay_mib} << 20;
  EventSocketOptions addresses = flags.sockets;
  addresses.high_water = static_cast<int>(flags.high_water);
  if (addresses.replay == "none") addresses.replay.clear();
  StopSignals stop;
  EventFeed feed(options, absl::Now());
  auto sockets = EventSockets::Open(addresses, &feed);
  if (!sockets.ok()) return Fail(console, sockets.status());

  absl::Mutex mutex;
  const auto say = [&](const std::string& line) {
    absl::MutexLock lock(&mutex);
    console.err << "-- " << line << std::endl;
  };
  say(absl::StrCat("publishing at ", (*sockets)->publish_address(),
                   addresses.replay.empty() ? "" : ", replays at ", (*sockets)->replay_address()));
  StoreFollower follower(flags.store, &feed, say);
  absl::Status followed;
  std::thread reader([&] {
    followed = follower.Run();
    // A store that refuses ends the program, as a signal does.
    if (!followed.ok()) kill(getpid(), SIGTERM);
  });
  (*sockets)->Run(stop.fd());
  if (console.progress) console.err << "\n";  // behind the terminal's ^C
  follower.Stop();
  reader.join();
  const FeedFigures figures = feed.figures();
  say(absl::StrCat("published ", figures.batches, " batches: ", FiguresText(figures)));
  if (!followed.ok()) return Fail(console, followed);
  return stop.Interrupted() ? kExitInterrupted : kExitOk;
}

void Declare(CommandFlags* command, EventsFlags* flags) {
  flags->store.Declare(command);
  command->Add("--zmq", &flags->sockets.publish, "where events are published").ShowDefault();
  command->Add("--replay", &flags->sockets.replay, "where missed ones are asked for; none: nowhere")
      .ShowDefault();
  command->Add("--topic", &flags->sockets.topic, "of all events; llm-d: kv@POD@MODEL");
  command
      ->Add("--fingerprint", &flags->feed.fingerprint,
            "of the worker, or its first digits; else that of the first restore point")
      .Placeholder("HEX")
      .Check([](const std::string& text) {
        return text.find_first_not_of("0123456789abcdef") == std::string::npos && text.size() <= 64
                   ? ""
                   : "a fingerprint is up to 64 digits 0-9 and a-f";
      });
  command->Add("--lora-name", &flags->feed.labels.lora_name, "the adapter of that fingerprint");
  command->Add("--medium", &flags->feed.labels.medium, "said of all blocks: GPU, CPU, DISK, ...")
      .ShowDefault();
  command->Add("--max-blocks", &flags->feed.max_blocks, "more are not reported")
      .ShowDefault()
      .Between(1, 1e9);
  command->Add("--replay-batches", &flags->feed.max_batches, "kept for who missed them")
      .ShowDefault()
      .Between(1, 1e7);
  command->Add("--replay-mib", &flags->replay_mib, "of those, at most so many MiB")
      .ShowDefault()
      .Between(1, 1 << 20);
  command->Add("--high-water", &flags->high_water, "batches that wait for one subscriber")
      .ShowDefault()
      .Between(1, 1e6);
}

}  // namespace

int RunEventsProgram(int argc, const char* const* argv, Console& outside) {
  EventsFlags flags;
  return RunProgram(
      {"hearth-events", "Tells routers which prefixes a store has, as vLLM tells it.",
       std::string("\nExamples:\n") + kEventsExamples, kVersion},
      argc, argv, outside, [&flags](CommandFlags* command) { Declare(command, &flags); },
      [&flags](Console& console) { return RunEvents(flags, console); });
}

}  // namespace hearth
