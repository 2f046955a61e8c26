package obs

import (
	"strconv"

	"tendril.dev/lib/nip34"
)

// KindLabel names the kinds that a git relay knows; every other is one label, so that strangers
// cannot multiply it.
func KindLabel(kind int) string {
	switch kind {
	case 0, 1, nip34.KindDeletion, 6, 7, nip34.KindComment, nip34.KindPatch, nip34.KindPR, nip34.KindPRUpdate, nip34.KindIssue,
		1630, 1631, 1632, 1633, 9734, 9735, nip34.KindUserGraspList, nip34.KindAnnouncement, nip34.KindState:
		return strconv.Itoa(kind)
	}
	return "other"
}
