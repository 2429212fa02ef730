// TemplateTools: how a model's own chat template writes tools and calls.
#ifndef HEARTH_WORKER_TEXT_JINJA_TEMPLATE_TOOLS_H_
#define HEARTH_WORKER_TEXT_JINJA_TEMPLATE_TOOLS_H_

#include <string>

namespace hearth {

struct TemplateTools {
  std::string name;          // the template, for error messages
  bool reads_tools = false;  // the template names the variable `tools`
  // A call is `call_prefix`{"name": NAME, "`call_key`": ARGUMENTS}. call_prefix is empty or ends
  // with a line end. call_key is empty if calls have another form.
  std::string call_prefix, call_key;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_JINJA_TEMPLATE_TOOLS_H_
