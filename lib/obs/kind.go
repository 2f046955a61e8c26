package obs

import (
	"strconv"

	"tendril.dev/lib/nostr"
)

// KindLabel names the kinds that a git relay knows; every other is one label, so that strangers
// cannot multiply it.
func KindLabel(kind int) string {
	switch kind {
	case 0, 1, nostr.KindDeletion, 6, 7, nostr.KindComment, nostr.KindPatch, nostr.KindPR, nostr.KindPRUpdate, nostr.KindIssue,
		1630, 1631, 1632, 1633, 9734, 9735, nostr.KindUserGraspList, nostr.KindAnnouncement, nostr.KindState:
		return strconv.Itoa(kind)
	}
	return "other"
}
