// Words to ids: Hearth's tokenizer against the SentencePiece library that it is made with, on the
// same text by turns.
//   tokenizer_bench TOKENIZER_MODEL TEXT_FILE...
// Of each file the first 128 KiB (whole characters). First time: a tokenizer that was just loaded;
// again: one that has seen the text. Processor time of the one thread, median of the turns; the
// ids must be equal, or it ends with 1. (They differ for runs of over 31 spaces and for control
// pieces, which Hearth does as transformers does: such texts are for the tests.)
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "sentencepiece_processor.h"
#include "worker/text/tokenizer.h"
#include "worker/text/utf8.h"

namespace hearth {
namespace {

constexpr size_t kTextBytes = 128 << 10;
constexpr int kLoads = 5;   // each has one first time
constexpr int kAgain = 10;  // turns after each load

double ThreadSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double Middle(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

bool ReadWhole(const char* path, std::string* text) {
  std::ifstream file(path, std::ios::binary);
  text->assign(std::istreambuf_iterator<char>(file), {});
  return file.good() || file.eof();
}

struct Times {
  std::vector<double> load, peer_load, first, again, peer_first, peer;
};

// False: the ids differ.
bool Turns(const std::string& model, const std::string& text, Times* times, size_t* tokens) {
  std::string error;
  double start = ThreadSeconds();
  const auto ours = Tokenizer::Parse(model, &error);
  times->load.push_back(ThreadSeconds() - start);
  sentencepiece::SentencePieceProcessor peer;
  start = ThreadSeconds();
  const bool loaded = peer.LoadFromSerializedProto(model).ok();
  times->peer_load.push_back(ThreadSeconds() - start);
  if (ours == nullptr || !loaded) {
    std::fprintf(stderr, "tokenizer_bench: %s\n", error.c_str());
    return false;
  }
  for (int turn = 0; turn <= kAgain; ++turn) {
    std::vector<int> peer_ids;
    start = ThreadSeconds();
    const auto status = peer.Encode(text, &peer_ids);
    (turn == 0 ? times->peer_first : times->peer).push_back(ThreadSeconds() - start);
    start = ThreadSeconds();
    const std::vector<int32_t> ids = ours->Encode(text);
    (turn == 0 ? times->first : times->again).push_back(ThreadSeconds() - start);
    if (!status.ok() || !std::equal(ids.begin(), ids.end(), peer_ids.begin(), peer_ids.end())) {
      std::fprintf(stderr, "tokenizer_bench: the ids differ\n");
      return false;
    }
    *tokens = ids.size();
  }
  return true;
}

int Main(int argc, char** argv) {
  std::string model;
  if (argc < 3 || !ReadWhole(argv[1], &model)) {
    std::fprintf(stderr, "usage: tokenizer_bench TOKENIZER_MODEL TEXT_FILE...\n");
    return 2;
  }
  std::printf("%-28s %8s %8s | %9s %9s %9s | %6s %6s | %s\n", "text", "bytes", "tokens", "peer ms",
              "first ms", "again ms", "first", "again", "load : peer's, ms");
  for (int i = 2; i < argc; ++i) {
    std::string text;
    if (!ReadWhole(argv[i], &text)) return 2;
    if (text.size() > kTextBytes) text.resize(kTextBytes);
    if (const auto bad = FindInvalidUtf8(text)) text.resize(*bad);
    Times times;
    size_t tokens = 0;
    for (int load = 0; load < kLoads; ++load) {
      if (!Turns(model, text, &times, &tokens)) return 1;
    }
    const double peer_first = Middle(times.peer_first), peer = Middle(times.peer);
    const double first = Middle(times.first), again = Middle(times.again);
    const std::string name = argv[i];
    std::printf("%-28s %8zu %8zu | %9.2f %9.2f %9.2f | %6.3f %6.3f | %.0f : %.0f\n",
                name.substr(name.size() > 28 ? name.size() - 28 : 0).c_str(), text.size(), tokens,
                1e3 * peer, 1e3 * first, 1e3 * again, first / peer_first, again / peer,
                1e3 * Middle(times.load), 1e3 * Middle(times.peer_load));
  }
  return 0;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) { return hearth::Main(argc, argv); }
