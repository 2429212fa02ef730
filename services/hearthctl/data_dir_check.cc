#include "services/hearthctl/data_dir_check.h"

#include <sys/types.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "cache_store/disk/folder_holder.h"
#include "cache_store/disk/verify.h"
#include "services/hearthctl/json_text.h"

namespace hearth {
namespace {

Json ReportJson(const std::string& dir, const VerifyReport& report,
                const std::optional<pid_t>& holder) {
  Json json;
  json["path"] = dir;
  json["ok"] = report.ok();
  json["restore_points"] = report.restore_points;
  json["objects"] = report.objects;
  json["slices"] = report.slices;
  json["slice_bytes"] = report.slice_bytes;
  json["unreferenced_objects"] = report.unreferenced_objects;
  json["missing_restore_points"] = report.missing_points;
  json["problem_count"] = report.problem_count;
  json["problems"] = report.problems;
  if (holder.has_value()) json["open_in_process"] = *holder;
  return json;
}

}  // namespace

int CheckDataDir(const std::string& dir, bool json, Console& console) {
  // Looking does a running store no harm; what it changes meanwhile may look damaged.
  const std::optional<pid_t> holder = FolderHolder(dir);
  const std::string open =
      holder.has_value() ? absl::StrCat("; process ", *holder,
                                        " has it open, and what that changes meanwhile can look "
                                        "damaged: stop it, and verify again")
                         : "";
  auto report = VerifyDataDir(dir);
  if (!report.ok()) {
    return Fail(console, absl::Status(report.status().code(),
                                      absl::StrCat(report.status().message(), open)));
  }
  if (json) {
    console.out << JsonLine(ReportJson(dir, *report, holder)) << std::endl;
  } else {
    console.out << dir << ": " << report->restore_points << " restore points, " << report->objects
                << " objects, " << report->slices << " slices, " << SizeText(report->slice_bytes)
                << " checked";
    if (holder.has_value()) console.out << ", while process " << *holder << " has it open";
    console.out << "\n";
    for (const std::string& problem : report->problems) console.out << "  " << problem << "\n";
    console.out << std::flush;
  }
  if (report->ok()) return kExitOk;
  return Fail(console, absl::DataLossError(absl::StrCat(
                           dir, ": ", report->problem_count, " problems; a store that opens it ",
                           report->is_whole() ? "says so and goes on: all that is there is whole"
                                              : "serves none of them, and computes and stores "
                                                "those prefixes again",
                           open)));
}

}  // namespace hearth
