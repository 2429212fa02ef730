#include <lzma.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/cleanup/cleanup.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "bench/simulate/simulate.h"

namespace hearth {
namespace {

using Json = nlohmann::json;

// first byte of an xz file; a line of JSON never begins with it
constexpr unsigned char kXzMagic = 0xFD;
constexpr uint64_t kXzMemory = uint64_t{256} << 20;  // memory limit of the xz decoder

// The number of each block so far. The key is the number of the previous block (-1: none) and the
// block's id, because KV depends on the whole prefix.
using BlockNumbers = absl::flat_hash_map<std::pair<uint64_t, int64_t>, uint32_t>;

// Reads a number from 0 to below 2^53. The caller adds file and line to the error.
absl::StatusOr<int64_t> Field(const Json& json, const char* name) {
  const auto value = json.find(name);
  if (value == json.end()) return absl::InvalidArgumentError(absl::StrCat("has no field ", name));
  const double number = value->is_number() ? value->get<double>() : -1;
  if (!(number >= 0 && number < 9e15)) {
    return absl::InvalidArgumentError(absl::StrCat("field ", name, " must be a number, 0 or more"));
  }
  return static_cast<int64_t>(number);
}

absl::Status ParseLine(const std::string& line, BlockNumbers* numbers, TraceRequest* request) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError("is not a JSON object");
  const absl::StatusOr<int64_t> at_ms = Field(json, "timestamp");
  if (!at_ms.ok()) return at_ms.status();
  const absl::StatusOr<int64_t> tokens = Field(json, "input_length");
  if (!tokens.ok()) return tokens.status();
  const auto ids = json.find("hash_ids");
  if (ids == json.end() || !ids->is_array()) {
    return absl::InvalidArgumentError("field hash_ids must be a list of integers");
  }
  const int64_t needed = (*tokens + Trace::kBlockTokens - 1) / Trace::kBlockTokens;
  if (needed != static_cast<int64_t>(ids->size())) {
    return absl::InvalidArgumentError(absl::StrCat("has ", ids->size(), " hash_ids; ", *tokens,
                                                   " tokens in blocks of 512 make ", needed));
  }
  request->at_ms = *at_ms;
  request->tokens = static_cast<uint32_t>(*tokens);
  int64_t parent = -1;
  for (const Json& id : *ids) {
    if (!id.is_number_integer() || (!id.is_number_unsigned() && id.get<int64_t>() < 0)) {
      return absl::InvalidArgumentError("field hash_ids must hold integers, 0 or more");
    }
    const auto next = static_cast<uint32_t>(numbers->size());
    parent = numbers->try_emplace({id.get<uint64_t>(), parent}, next).first->second;
    request->blocks.push_back(static_cast<uint32_t>(parent));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> DecodeXz(std::istream& in) {
  lzma_stream stream = LZMA_STREAM_INIT;
  if (lzma_stream_decoder(&stream, kXzMemory, LZMA_CONCATENATED) != LZMA_OK) {
    return absl::ResourceExhaustedError("no memory to decompress it");
  }
  const auto free_stream = absl::MakeCleanup([&stream] { lzma_end(&stream); });
  const std::string packed(std::istreambuf_iterator<char>(in), {});
  stream.next_in = reinterpret_cast<const uint8_t*>(packed.data());
  stream.avail_in = packed.size();
  std::string text;
  std::vector<uint8_t> unpacked(1 << 20);
  lzma_ret result = LZMA_OK;
  while (result == LZMA_OK) {
    stream.next_out = unpacked.data();
    stream.avail_out = unpacked.size();
    result = lzma_code(&stream, LZMA_FINISH);
    text.append(reinterpret_cast<const char*>(unpacked.data()), unpacked.size() - stream.avail_out);
    if (text.size() > Trace::kMaxUnpackedBytes) {
      return absl::InvalidArgumentError("more than 4 GiB when decompressed: cut the trace");
    }
  }
  if (result == LZMA_STREAM_END) return text;
  return absl::DataLossError("is not a whole xz file: download or compress it again");
}

}  // namespace

absl::StatusOr<Trace> ReadTrace(std::istream& in, const std::string& name) {
  Trace trace;
  BlockNumbers numbers;
  std::string line;
  uint64_t total = 0;
  for (uint64_t number = 1; std::getline(in, line); ++number) {
    const auto refuse = [&](const std::string& why) {
      return absl::InvalidArgumentError(absl::StrCat(name, ":", number, ": ", why));
    };
    if (line.size() > Trace::kMaxLineBytes) return refuse("line is longer than 1 MiB");
    if (line.empty()) continue;
    TraceRequest request;
    const absl::Status status = ParseLine(line, &numbers, &request);
    if (!status.ok()) return refuse(std::string(status.message()));
    if (!trace.requests.empty() && request.at_ms < trace.requests.back().at_ms) {
      return refuse("field timestamp goes back: sort the trace by time");
    }
    total += request.blocks.size();
    if (total > Trace::kMaxBlocks) return refuse("more than 50 million blocks: cut the trace");
    trace.requests.push_back(std::move(request));
  }
  if (in.bad()) return absl::DataLossError(absl::StrCat(name, ": cannot be read to its end"));
  if (total == 0) return absl::InvalidArgumentError(absl::StrCat(name, ": holds no block"));
  trace.unique_blocks = static_cast<uint32_t>(numbers.size());
  std::vector<bool> is_full(numbers.size());
  for (const TraceRequest& request : trace.requests) {
    const uint32_t full = request.tokens / Trace::kBlockTokens;
    for (uint32_t i = 0; i < full; ++i) is_full[request.blocks[i]] = true;
  }
  trace.unique_full_blocks = static_cast<uint32_t>(absl::c_count(is_full, true));
  return trace;
}

absl::StatusOr<Trace> ReadTraceFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in.is_open()) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot be opened: ", std::strerror(errno)));
  }
  if (in.peek() != kXzMagic) return ReadTrace(in, path);
  absl::StatusOr<std::string> text = DecodeXz(in);
  if (!text.ok()) {
    return absl::Status(text.status().code(), absl::StrCat(path, ": ", text.status().message()));
  }
  std::istringstream lines(*std::move(text));
  return ReadTrace(lines, path);
}

}  // namespace hearth
