package nostr

import "strings"

// BranchesAndTags returns those of some references that a state event (kind 30618) speaks of: what
// is below refs/heads/ and refs/tags/, by full name.
func BranchesAndTags(refs map[string]string) map[string]string {
	out := map[string]string{}
	for name, id := range refs {
		if strings.HasPrefix(name, "refs/heads/") || strings.HasPrefix(name, "refs/tags/") {
			out[name] = id
		}
	}
	return out
}
