package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"

	"tendril.dev/lib/config"
	"tendril.dev/lib/nip34"
	"tendril.dev/proto"
)

// listsOf is a short form of the lists by which announcements are accepted or not; empty if there
// are none. The order within a list makes no difference.
func listsOf(s config.Policy) string {
	lists := [][]string{s.RepositoryWhitelist, s.RepositoryBlacklist, s.ArchiveWhitelist, s.ArchiveServices}
	if s.ArchiveAll {
		lists = append(lists, []string{"all"})
	} else if len(slices.Concat(lists...)) == 0 {
		return ""
	}
	for i, list := range lists {
		lists[i] = slices.Sorted(slices.Values(list))
	}
	text, err := json.Marshal(lists)
	if err != nil {
		return "" // not reached: these are strings
	}
	hash := sha256.Sum256(text)
	return hex.EncodeToString(hash[:8])
}

// Outdated reports whether an announcement was rejected by other lists than those of now. It may be
// welcome by these, so that it must be fetched and decided again.
func (p *Policy) Outdated(r proto.RejectedEvent) bool {
	if r.Kind != nip34.KindAnnouncement || r.Rules == p.lists {
		return false
	}
	return r.Reason == messageNotListed || r.Reason == messageNotHosted || r.Reason == messageRefused
}
