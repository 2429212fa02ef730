#include "services/hearthctl/data_dir_check.h"

#include "absl/strings/str_cat.h"
#include "cache_store/verify.h"
#include "services/hearthctl/json_text.h"

namespace hearth {
namespace {

Json ReportJson(const std::string& dir, const VerifyReport& report) {
  Json json;
  json["path"] = dir;
  json["ok"] = report.ok();
  json["restore_points"] = report.restore_points;
  json["objects"] = report.objects;
  json["slices"] = report.slices;
  json["slice_bytes"] = report.slice_bytes;
  json["unreferenced_objects"] = report.unreferenced_objects;
  json["problem_count"] = report.problem_count;
  json["problems"] = report.problems;
  return json;
}

}  // namespace

int CheckDataDir(const std::string& dir, bool json, Console& console) {
  auto report = VerifyDataDir(dir);
  if (!report.ok()) return Fail(console, report.status());
  if (json) {
    console.out << JsonLine(ReportJson(dir, *report)) << std::endl;
  } else {
    console.out << dir << ": " << report->restore_points << " restore points, " << report->objects
                << " objects, " << report->slices << " slices, " << SizeText(report->slice_bytes)
                << " checked\n";
    for (const std::string& problem : report->problems) console.out << "  " << problem << "\n";
    console.out << std::flush;
  }
  if (report->ok()) return kExitOk;
  return Fail(console, absl::DataLossError(absl::StrCat(
                           dir, ": ", report->problem_count,
                           " problems; a store that opens it serves none of them, and computes "
                           "and stores those prefixes again")));
}

}  // namespace hearth
