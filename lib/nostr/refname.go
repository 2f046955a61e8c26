package nostr

import (
	"fmt"
	"strings"
)

// Bounds of reference names beyond git's own rules. Git keeps a reference in a file of its name
// (and locks it by another with ".lock" behind it), so that a longer name would pass here and fail
// on disk.
const maxRefName, maxRefComponent = 1024, 240

// CheckRefName says what is wrong with the full name of a git reference, by the rules of git
// check-ref-format(1) and two bounds of length. It does not ask for any prefix, but for at least
// one slash, as git does.
func CheckRefName(name string) error {
	if len(name) > maxRefName {
		return fmt.Errorf("a reference name is longer than %d bytes", maxRefName)
	}
	why := ""
	switch illegal := strings.IndexAny(name, " ~^:?*[\\"); {
	case strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }):
		why = "contains a control character"
	case illegal >= 0:
		why = fmt.Sprintf("contains %q", name[illegal])
	case !strings.Contains(name, "/"):
		why = "has no slash"
	case strings.Contains(name, ".."), strings.Contains(name, "@{"):
		why = `contains ".." or "@{"`
	case strings.HasSuffix(name, "."):
		why = "ends with a dot"
	}
	for component := range strings.SplitSeq(name, "/") {
		switch {
		case why != "":
		case component == "", component[0] == '.', strings.HasSuffix(component, ".lock"):
			why = "has a component that is empty, starts with a dot or ends with .lock"
		case len(component) > maxRefComponent:
			why = fmt.Sprintf("has a component longer than %d bytes", maxRefComponent)
		}
	}
	if why != "" {
		return fmt.Errorf("the reference name %q %s", name, why)
	}
	return nil
}
