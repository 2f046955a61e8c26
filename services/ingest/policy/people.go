package policy

import "tendril.dev/lib/nostr"

// PartKinds are the kinds by whose accepted events their author takes part: announcements, root
// events, and what lies in threads.
var PartKinds = nostr.KindsThat(func(k nostr.Kind) bool {
	return k.Vouches && (!k.Unlinked || k.Number == nostr.KindAnnouncement)
})

// aboutAuthor decides kinds 0 and 10002, which authors write of themselves: of those who take part
// here they are accepted. They vouch for nothing.
func (p *Policy) aboutAuthor(k Knowledge, c *Candidate) Decision {
	if k.TakesPart(c.Event.PubKey) {
		return accepted()
	}
	return p.referenced(k, c)
}
