package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"

	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
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

// rulesOfOffers stands for the setting by which pull requests are taken below /prs/.
const rulesOfOffers = "prs"

// rulesFor are the settings that decide about events of a kind, in short; "": there are none.
func (p *Policy) rulesFor(kind int) string {
	switch {
	case kind == nostr.KindAnnouncement:
		return p.lists
	case p.offers && (kind == nostr.KindPR || kind == nostr.KindPRUpdate):
		return rulesOfOffers
	}
	return ""
}

// Outdated reports whether the reason of a rejection may not hold any more, because it was made by
// other settings than those of now: such an event must be fetched and decided again. Its author may
// not be on the blacklist any more, the lists may welcome its repository, and pull requests may be
// taken below /prs/.
func (p *Policy) Outdated(r proto.RejectedEvent) bool {
	switch r.Reason {
	case messageUnwelcome:
		return !p.blacklist[r.PubKey]
	case messageNotListed, messageNotHosted, messageRefused:
		return r.Kind == nostr.KindAnnouncement && r.Rules != p.lists
	case messageOrphan:
		return p.rulesFor(r.Kind) == rulesOfOffers && r.Rules != rulesOfOffers
	}
	return false
}
