#include "services/hearthctl/commands/hit_rate_picture.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace hearth {
namespace {

constexpr double kWidth = 940, kHeight = 560;
constexpr double kLeft = 76, kRight = 804, kTop = 132, kBottom = 470;
constexpr double kLabelStep = 19;  // least distance of two lines' names

constexpr char kStyle[] = R"(
  .page { fill: #ffffff } .ink { fill: #1d2430 } .soft { fill: #667085 }
  .grid { stroke: #e4e7ec } .axis { stroke: #98a2b3 }
  .curve { fill: none; stroke-linejoin: round; stroke-linecap: round }
  .default { stroke: #e8590c; stroke-width: 3.5 } .default-fill { fill: #e8590c }
  .lru { stroke: #667085; stroke-width: 2.5 } .lru-fill { fill: #667085 }
  .optimum { stroke: #1d2430; stroke-width: 2; stroke-dasharray: 2 6 }
  .optimum-fill { fill: #1d2430 }
  .value { paint-order: stroke; stroke: #ffffff; stroke-width: 4 }
  text { font-family: system-ui, "Segoe UI", Helvetica, Arial, sans-serif }
  @media (prefers-color-scheme: dark) {
    .page { fill: #14181f } .ink { fill: #eceff4 } .soft { fill: #9aa4b2 }
    .value { stroke: #14181f } .grid { stroke: #2b323d } .axis { stroke: #667085 }
    .lru { stroke: #9aa4b2 } .lru-fill { fill: #9aa4b2 }
    .optimum { stroke: #eceff4 } .optimum-fill { fill: #eceff4 }
  }
)";

std::string Number(double value) { return absl::StrFormat("%.1f", value); }

// "1 %", "2.5 %".
std::string Percent(double share) {
  return absl::StrFormat("%.4g %%", std::round(share * 1e5) / 1e3);
}

std::string Text(double x, double y, const std::string& content, const std::string& kind,
                 double size, const char* anchor = "start", int weight = 400) {
  const std::string escaped =
      absl::StrReplaceAll(content, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
  return absl::StrCat("<text x=\"", Number(x), "\" y=\"", Number(y), "\" class=\"", kind,
                      "\" font-size=\"", size, "\" font-weight=\"", weight, "\" text-anchor=\"",
                      anchor, "\">", escaped, "</text>\n");
}

std::string Line(double x1, double y1, double x2, double y2, const char* kind) {
  return absl::StrCat("<line x1=\"", Number(x1), "\" y1=\"", Number(y1), "\" x2=\"", Number(x2),
                      "\" y2=\"", Number(y2), "\" class=\"", kind, "\"/>\n");
}

// Where values are drawn.
class Scale {
 public:
  explicit Scale(const std::vector<HitRateLine>& lines) {
    double highest = 0;
    for (const HitRateLine& line : lines) {
      assert(!line.points.empty());
      for (const auto& [capacity, rate] : line.points) {
        assert(capacity > 0);
        least_ = std::min(least_, capacity);
        most_ = std::max(most_, capacity);
        highest = std::max(highest, rate);
      }
    }
    for (const double step : {0.01, 0.02, 0.05, 0.1, 0.2}) {
      step_ = step;
      if (highest <= 6 * step) break;
    }
    top_ = step_ * std::max(1.0, std::ceil(highest / step_ - 1e-9));
  }
  double X(double capacity) const {
    if (most_ <= least_) return (kLeft + kRight) / 2;
    const double share = std::log(capacity / least_) / std::log(most_ / least_);
    return kLeft + 28 + share * (kRight - kLeft - 56);
  }
  double Y(double rate) const { return kBottom - rate / top_ * (kBottom - kTop); }
  double step() const { return step_; }
  double top() const { return top_; }

 private:
  double least_ = 1e9, most_ = 0, step_ = 0.1, top_ = 1;
};

std::string Axes(const HitRatePicture& picture, const Scale& scale) {
  std::string svg;
  for (double rate = 0; rate <= scale.top() + 1e-9; rate += scale.step()) {
    const double y = scale.Y(rate);
    svg += Line(kLeft, y, kRight, y, rate == 0 ? "axis" : "grid");
    svg += Text(kLeft - 12, y + 4.5, Percent(rate), "soft", 13, "end");
  }
  std::vector<double> capacities;
  for (const HitRateLine& line : picture.lines) {
    for (const auto& point : line.points) capacities.push_back(point.first);
  }
  std::sort(capacities.begin(), capacities.end());
  double last = -1e9;
  for (const double capacity : capacities) {
    const double x = scale.X(capacity);
    if (x == last) continue;
    svg += Line(x, kBottom, x, kBottom + 6, "axis");
    // Where sizes are close some go unnamed.
    if (x - last >= 44) svg += Text(x, kBottom + 24, Percent(capacity), "soft", 13, "middle");
    last = x;
  }
  svg += Text((kLeft + kRight) / 2, kBottom + 54, picture.capacity_label, "ink", 14, "middle");
  svg += Text(kLeft, kTop - 18, picture.rate_label, "ink", 14);
  return svg;
}

// Whether another line passes just above a point, where its value would stand.
bool IsCovered(const HitRatePicture& picture, const std::pair<double, double>& point,
               const Scale& scale) {
  for (const HitRateLine& line : picture.lines) {
    for (const auto& [capacity, rate] : line.points) {
      const double above = scale.Y(point.second) - scale.Y(rate);
      if (capacity == point.first && above > 1 && above < 30) return true;
    }
  }
  return false;
}

std::string Curve(const HitRatePicture& picture, const HitRateLine& line, const Scale& scale,
                  bool with_values) {
  std::string path, dots, values;
  for (const auto& point : line.points) {
    const double x = scale.X(point.first), y = scale.Y(point.second);
    absl::StrAppend(&path, path.empty() ? "M" : "L", Number(x), " ", Number(y), " ");
    absl::StrAppend(&dots, "<circle cx=\"", Number(x), "\" cy=\"", Number(y), "\" r=\"",
                    with_values ? "4.5" : "3.5", "\" class=\"", line.policy, "-fill\"/>\n");
    if (!with_values) continue;
    const double at = IsCovered(picture, point, scale) ? y + 22 : y - 12;
    // To the right of the last one stand the lines' names.
    const bool is_last = &point == &line.points.back();
    values += Text(is_last ? x + 6 : x, at, Number(point.second * 100), "ink value", 12.5,
                   is_last ? "end" : "middle", 600);
  }
  return absl::StrCat("<path d=\"", path, "\" class=\"curve ", line.policy, "\"/>\n", dots, values);
}

// Names at the right end of the lines, kept apart.
std::string Names(const std::vector<HitRateLine>& lines, const Scale& scale) {
  std::vector<std::pair<double, const HitRateLine*>> names;
  for (const HitRateLine& line : lines) {
    names.emplace_back(scale.Y(line.points.back().second), &line);
  }
  std::stable_sort(names.begin(), names.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string svg;
  double least = -1e9;
  for (const auto& [wanted, line] : names) {
    const double y = std::max(wanted, least);
    least = y + kLabelStep;
    svg += Text(scale.X(line->points.back().first) + 14, y + 5, line->name,
                absl::StrCat(line->policy, "-fill"), 14, "start", 600);
  }
  return svg;
}

}  // namespace

std::string DrawHitRates(const HitRatePicture& picture) {
  assert(!picture.lines.empty());
  const Scale scale(picture.lines);
  std::string svg = absl::StrCat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", kWidth, " ", kHeight,
      "\" width=\"", kWidth, "\" height=\"", kHeight, "\" role=\"img\">\n<title>Hit rate against ",
      "capacity</title>\n<style>", kStyle, "</style>\n<rect class=\"page\" width=\"", kWidth,
      "\" height=\"", kHeight, "\" rx=\"12\"/>\n");
  svg += Text(32, 46, picture.title, "ink", 22, "start", 650);
  svg += Text(32, 72, picture.subtitle, "soft", 14);
  svg += Axes(picture, scale);
  // The store's own on top.
  for (const HitRateLine& line : picture.lines) {
    if (line.policy != "default") svg += Curve(picture, line, scale, false);
  }
  for (const HitRateLine& line : picture.lines) {
    if (line.policy == "default") svg += Curve(picture, line, scale, true);
  }
  svg += Names(picture.lines, scale);
  return svg + "</svg>\n";
}

}  // namespace hearth
