#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/inference.grpc.pb.h"
#include "services/cli/connection.h"
#include "services/hearthctl/commands.h"
#include "services/hearthctl/json_text.h"
#include "services/hearthctl/prompt_flags.h"
#include "services/rpc/proto_conversion.h"

namespace hearth {
namespace {

constexpr char kExplainExamples[] =
    R"(  hearthctl explain --prompt-file system.txt
  hearthctl explain --chat chat.json --json
Shows, for each boundary of the prompt, whether the worker's store has it and in which tier, or why
it cannot be used: never stored; evicted, dropped or quarantined, when and why; the tail of its
local layers or earlier global layers gone; other cuts; another model or dtype (with the field).
)";

struct ExplainFlags {
  PeerFlags worker;
  PromptFlags prompt;
  std::string adapter;
  bool json = false;
};

Json ExplainJson(const v1::ExplainResponse& response) {
  Json json = MessageJson(response);
  for (Json& boundary : json["boundaries"]) {
    RenameField("slowest_tier", "tier", &boundary);
    if (boundary["removed_by"] == "") boundary.erase("removed_s");
  }
  return json;
}

// Returns why a boundary cannot be used, or that it is from the public namespace.
std::string Note(const v1::BoundaryInfo& boundary) {
  return boundary.from_public() ? "from the public namespace" : WhyUnusable(boundary);
}

// Returns the table row of a boundary, without its first column.
std::string RowText(const v1::BoundaryInfo& boundary) {
  return absl::StrFormat("  %-6s  %-6s  %9s  %8s  %-6s  %s", boundary.usable() ? "yes" : "no",
                         TierText(boundary.slowest_tier()),
                         boundary.bytes() > 0 ? SizeText(boundary.bytes()) : "-",
                         boundary.restore_point_id().empty() ? "-" : AgeText(boundary.age_s()),
                         boundary.pinned() ? "yes" : "no", Note(boundary));
}

// Prints a table of boundaries. Consecutive boundaries that are unusable for the same reason are
// one row.
void PrintBoundaries(const v1::ExplainResponse& response, Console& console) {
  if (response.boundaries_size() == 0) return;
  console.out << "    boundary  usable  tier        size       age  pinned  note\n";
  for (int i = 0; i < response.boundaries_size();) {
    const v1::BoundaryInfo& first = response.boundaries(i);
    const std::string text = RowText(first);
    int end = i + 1;
    while (!first.usable() && end < response.boundaries_size() &&
           !response.boundaries(end).usable() && RowText(response.boundaries(end)) == text) {
      ++end;
    }
    const std::string range = end == i + 1 ? absl::StrCat(first.boundary())
                                           : absl::StrCat(first.boundary(), "..",
                                                          response.boundaries(end - 1).boundary());
    console.out << absl::StrFormat("%12s", range) << text;
    if (end > i + 1) console.out << " (" << end - i << " boundaries)";
    console.out << "\n";
    i = end;
  }
}

// Number of tokens that all texts have in common: <bos>. So a match of one token is not reported.
constexpr uint32_t kFirstToken = 1;

void PrintExplain(const v1::ExplainResponse& response, Console& console) {
  const bool only_first = response.usable_tokens() == 0 &&
                          response.matched_tokens() == kFirstToken &&
                          response.boundaries_size() == 0;
  console.out << (only_first ? "miss: no stored prompt has a prefix in common with this prompt"
                             : response.summary())
              << "\n";
  PrintBoundaries(response, console);
  if (response.omitted_boundaries() > 0) {
    console.out << "  " << response.omitted_boundaries() << " more boundaries, never stored\n";
  }
  for (const auto& other : response.other_fingerprints()) {
    if (other.matched_tokens() <= kFirstToken) continue;
    console.out << "  " << other.matched_tokens() << " tokens are stored with another "
                << other.field() << ": \"" << other.stored() << "\" instead of \""
                << other.requested() << "\"\n";
  }
  console.out << std::flush;
}

int RunExplain(const ExplainFlags& flags, Console& console) {
  auto prompt = flags.prompt.Build();
  if (!prompt.ok()) return Fail(console, prompt.status());
  v1::ExplainInputRequest request;
  *request.mutable_prompt() = *std::move(prompt);
  request.set_adapter(flags.adapter);
  const auto response = Ask(flags.worker, &v1::Inference::Stub::Explain, request);
  if (!response.ok()) return Fail(console, response.status());
  if (flags.json) return PrintJson(ExplainJson(*response), console);
  PrintExplain(*response, console);
  return kExitOk;
}

}  // namespace

void AddExplainCommand(CommandLine* line) {
  const auto [command, flags] =
      line->Add<ExplainFlags>("explain", "Show which parts of a prompt are stored, or why not",
                              kExplainExamples, RunExplain);
  flags->worker.Declare(command);
  flags->prompt.Declare(command);
  DeclareAdapter(command, &flags->adapter);
  AddJson(command, &flags->json);
}

}  // namespace hearth
