package nostr

import (
	"errors"
	"fmt"
	"strings"
)

// Bounds of reference names beyond git's own rules. Git keeps a reference in a file of its name
// (and locks it by another with ".lock" behind it), so that a longer name would pass here and fail
// on disk.
const (
	maxRefName      = 1024
	maxRefComponent = 240
)

// CheckRefName says what is wrong with the full name of a git reference, by the rules of git
// check-ref-format(1) and two bounds of length. It does not ask for any prefix, but for at least
// one slash, as git does.
func CheckRefName(name string) error {
	if len(name) > maxRefName {
		return fmt.Errorf("a reference name is longer than %d bytes", maxRefName)
	}
	if !strings.Contains(name, "/") {
		return fmt.Errorf("the reference name %q has no slash", name)
	}
	if why := illegalInRefName(name); why != "" {
		return fmt.Errorf("the reference name %q %s", name, why)
	}
	for component := range strings.SplitSeq(name, "/") {
		if err := checkRefComponent(component); err != nil {
			return fmt.Errorf("the reference name %q %w", name, err)
		}
	}
	return nil
}

func illegalInRefName(name string) string {
	for i := range len(name) {
		switch c := name[i]; {
		case c < ' ', c == 0x7f:
			return "contains a control character"
		case strings.IndexByte(" ~^:?*[\\", c) >= 0:
			return fmt.Sprintf("contains %q", c)
		}
	}
	switch {
	case strings.Contains(name, ".."):
		return `contains ".."`
	case strings.Contains(name, "@{"):
		return `contains "@{"`
	case strings.HasSuffix(name, "."):
		return "ends with a dot"
	}
	return ""
}

func checkRefComponent(component string) error {
	switch {
	case component == "":
		return errors.New("has an empty component")
	case component[0] == '.':
		return errors.New("has a component that starts with a dot")
	case strings.HasSuffix(component, ".lock"):
		return errors.New("has a component that ends with .lock")
	case len(component) > maxRefComponent:
		return fmt.Errorf("has a component longer than %d bytes", maxRefComponent)
	}
	return nil
}
