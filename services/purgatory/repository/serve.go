package repository

import (
	"fmt"
	"slices"
	"time"
)

// advertiseTime bounds how long git may take to say what references there are.
const advertiseTime = 2 * time.Minute

// UploadPack is `git upload-pack --stateless-rpc`: it answers a fetch, or, with advertise, says
// what there is to fetch. protocol is the value of a Git-Protocol header, which the caller has
// checked, or "".
func (r *Repo) UploadPack(advertise bool, protocol string) *Command {
	c := r.serve("upload-pack", advertise)
	c.config = uploadConfiguration
	if protocol != "" {
		c.env = []string{"GIT_PROTOCOL=" + protocol}
	}
	return c
}

// AdvertisePush is `git receive-pack --stateless-rpc --advertise-refs`: it says what there is
// before a push of a pack of at most maxBytes.
func (r *Repo) AdvertisePush(maxBytes int64) *Command {
	c := r.serve("receive-pack", true)
	c.config = receiving(maxBytes, false)
	return c
}

// ReceivePack is `git receive-pack --stateless-rpc`: it takes a push, checked as strictly as Take
// checks, of a pack of at most maxBytes. The push must be read from disk or memory, not from the
// network.
// What is named for pull requests is read only if the push names such a reference.
func (l *Locked) ReceivePack(maxBytes int64, namesPullRequests bool) *Command {
	c := l.serve("receive-pack", false)
	c.leased, c.locked, c.syncs = l.Leased, l, true
	c.Time, c.config = l.Store.PackTime, receiving(maxBytes, namesPullRequests)
	return c
}

func receiving(maxBytes int64, namesPullRequests bool) []string {
	configuration := slices.Concat(receiveConfiguration, []string{fmt.Sprintf("receive.maxInputSize=%d", maxBytes)})
	if !namesPullRequests {
		configuration = append(configuration, "receive.hideRefs=refs/nostr")
	}
	return configuration
}

func (r *Repo) serve(service string, advertise bool) *Command {
	c := r.reading(service, "--stateless-rpc")
	c.serves = true
	if advertise {
		c.args = append(c.args, "--advertise-refs")
		c.Time = advertiseTime
	}
	c.args = append(c.args, ".")
	return c
}
