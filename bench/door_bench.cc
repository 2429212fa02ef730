// Compares the cost of OpenAI's API over HTTP with gRPC: the same greedy requests by turns at one
// worker.
//
//   door_bench GRPC HTTP PID [ROUNDS [STREAMS [TOKENS]]]
//
// In each turn, STREAMS concurrent callers request TOKENS tokens after their own prompts, which the
// turn before has put into the cache. Prints for each API, as the median of the rounds: the median
// time to the first token, tokens per second, and the worker's processor time per token (PID: the
// worker's process). A failed request ends the program.
#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "bench/turns.h"
#include "proto/inference.grpc.pb.h"

namespace hearth {
namespace {

struct Measured {
  double first_ms = 0;
  int tokens = 0;
};

std::vector<uint32_t> PromptOf(int caller) {
  std::vector<uint32_t> ids = {2};
  for (uint32_t i = 0; i < 130; ++i)
    ids.push_back(300 + (static_cast<uint32_t>(caller) * 97 + i * 31) % 390);
  return ids;
}

Measured AskGrpc(v1::Inference::Stub* stub, int caller, uint32_t tokens) {
  v1::GenerateRequest request;
  for (const uint32_t id : PromptOf(caller))
    request.mutable_prompt()->mutable_token_ids()->add_ids(id);
  request.set_max_new_tokens(tokens);
  request.set_ignore_eos(true);
  grpc::ClientContext context;
  Measured measured;
  const absl::Time start = absl::Now();
  const auto reader = stub->Generate(&context, request);
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    if (!response.has_token()) continue;
    if (measured.tokens == 0) measured.first_ms = absl::ToDoubleMilliseconds(absl::Now() - start);
    measured.tokens += response.token().ids_size();
  }
  const grpc::Status status = reader->Finish();
  RequireOk(
      absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message()));
  return measured;
}

int ConnectTo(const std::string& address) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(address, ':');
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::atoi(parts.second.c_str())));
  inet_pton(AF_INET, parts.first.c_str(), &to.sin_addr);
  const int made = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(made, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) {
    RequireOk(absl::ErrnoToStatus(errno, address));
  }
  return made;
}

Measured AskHttp(const std::string& address, int caller, uint32_t tokens) {
  const std::string body =
      absl::StrCat(R"({"temperature": 0, "stream": true, "ignore_eos": true, "max_tokens": )",
                   tokens, ", \"prompt\": [", absl::StrJoin(PromptOf(caller), ","), "]}");
  Measured measured;
  const absl::Time start = absl::Now();
  const int made = ConnectTo(address);
  const std::string request = absl::StrCat(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
      "application/json\r\nConnection: close\r\nContent-Length: ",
      body.size(), "\r\n\r\n", body);
  if (write(made, request.data(), request.size()) != static_cast<ssize_t>(request.size())) {
    RequireOk(absl::ErrnoToStatus(errno, address));
  }
  std::string line, last;  // last: the last line that was not empty
  std::vector<char> bytes(1 << 16);
  for (ssize_t got = 0; (got = read(made, bytes.data(), bytes.size())) > 0;) {
    for (ssize_t i = 0; i < got; ++i) {
      if (bytes[static_cast<size_t>(i)] != '\n') {
        line += bytes[static_cast<size_t>(i)];
        continue;
      }
      const bool is_text =
          absl::StartsWith(line, "data: {") && !absl::StrContains(line, "\"text\":\"\"");
      if (is_text && measured.tokens == 0) {
        measured.first_ms = absl::ToDoubleMilliseconds(absl::Now() - start);
        // the number of text pieces is too low, because some tokens have no text
        measured.tokens = static_cast<int>(tokens);
      }
      if (absl::StartsWith(line, "data: {\"error\"")) RequireOk(absl::UnknownError(line));
      if (line.size() > 1 && line != "0\r") last = line;
      line.clear();
    }
  }
  close(made);
  if (last != "data: [DONE]") {
    RequireOk(absl::UnknownError(absl::StrCat("the answer ends with ", last, line)));
  }
  return measured;
}

double ProcessorSecondsOf(const std::string& pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::stringstream text;
  text << file.rdbuf();
  const std::string rest = text.str().substr(text.str().rfind(')') + 2);
  const std::vector<std::string> fields = absl::StrSplit(rest, ' ');
  return (std::atof(fields[11].c_str()) + std::atof(fields[12].c_str())) /
         static_cast<double>(sysconf(_SC_CLK_TCK));
}

struct Figures {
  std::vector<double> first_ms, tokens_s, processor_us;
};

template <typename Ask>
void Turn(int streams, const std::string& pid, const Ask& ask, Figures* figures) {
  std::vector<Measured> measured(static_cast<size_t>(streams));
  const double before = ProcessorSecondsOf(pid);
  const double seconds = Seconds([&] {
    std::vector<std::thread> callers;
    for (int i = 0; i < streams; ++i)
      callers.emplace_back([&, i] { measured[static_cast<size_t>(i)] = ask(i); });
    for (std::thread& caller : callers) caller.join();
  });
  std::vector<double> first_ms;
  int tokens = 0;
  for (const Measured& one : measured) {
    first_ms.push_back(one.first_ms);
    tokens += one.tokens;
  }
  figures->first_ms.push_back(Median(first_ms));
  figures->tokens_s.push_back(tokens / seconds);
  figures->processor_us.push_back((ProcessorSecondsOf(pid) - before) * 1e6 / tokens);
}

int Main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: door_bench GRPC HTTP PID [ROUNDS [STREAMS [TOKENS]]]\n");
    return 2;
  }
  const auto number = [&](int at, int otherwise) {
    return argc > at ? std::atoi(argv[at]) : otherwise;
  };
  const int rounds = number(4, 7), streams = number(5, 1);
  const auto tokens = static_cast<uint32_t>(number(6, 100));
  const auto stub =
      v1::Inference::NewStub(grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials()));
  const auto by_grpc = [&](int caller) { return AskGrpc(stub.get(), caller, tokens); };
  const auto by_http = [&](int caller) { return AskHttp(argv[2], caller, tokens); };
  Figures grpc, http, unused;
  Turn(streams, argv[3], by_grpc, &unused);
  Turn(streams, argv[3], by_http, &unused);
  for (int round = 0; round < rounds; ++round) {
    Turn(streams, argv[3], by_grpc, &grpc);
    Turn(streams, argv[3], by_http, &http);
  }
  for (const auto& [name, figures] : {std::pair("gRPC", &grpc), std::pair("HTTP", &http)}) {
    std::printf("%s: first token %.2f ms, %.1f tokens/s, %.0f us of processor time a token\n", name,
                Median(figures->first_ms), Median(figures->tokens_s),
                Median(figures->processor_us));
  }
  return 0;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) { return hearth::Main(argc, argv); }
