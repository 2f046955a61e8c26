package repository

import "strconv"

// UploadPack is `git upload-pack --stateless-rpc`: it answers a fetch, or, with advertise, says what there is to fetch. protocol is the
// value of a Git-Protocol header, which the caller has checked, or "".
func (r *Repo) UploadPack(advertise bool, protocol string) *Command {
	c := r.serve("upload-pack", advertise)
	c.config = uploadConfiguration()
	if protocol != "" {
		c.Setenv("GIT_PROTOCOL", protocol)
	}
	return c
}

// ReceivePack is `git receive-pack --stateless-rpc`: it takes a push, checked as strictly as StorePack checks, of a pack of at most
// maxBytes; or, with advertise, says what there is now.
func (r *Repo) ReceivePack(advertise bool, maxBytes int64) *Command {
	c := r.serve("receive-pack", advertise)
	c.config = append(receiveConfiguration(), setting{"receive.maxInputSize", strconv.FormatInt(maxBytes, 10)})
	return c
}

func (r *Repo) serve(service string, advertise bool) *Command {
	args := []string{service, "--stateless-rpc"}
	if advertise {
		args = append(args, "--advertise-refs")
	}
	c := r.Command(append(args, ".")...)
	c.Serving = true
	return c
}
