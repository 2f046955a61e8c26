package githttp

import (
	"cmp"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/pktline"

	"tendril.dev/lib/netguard"
	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

// Bounds of what stands before the pack of a push.
const (
	maxCommands     = 10_000
	maxCommandBytes = 4 << 20
)

// chargedCommands is what stands before a pack, which is kept in several forms until the push is
// answered: as it came, as commands, for git and in the report.
type chargedCommands struct {
	from   io.Reader
	memory *repository.Memory
	free   int64 // bytes that are charged and not read yet
}

const (
	formsOfCommands = 8
	commandsStep    = 8 << 10
)

// Read reads no more than what is charged.
func (c *chargedCommands) Read(p []byte) (int, error) {
	if c.free == 0 {
		if err := c.memory.Take(formsOfCommands * commandsStep); err != nil {
			return 0, err
		}
		c.free = commandsStep
	}
	n, err := c.from.Read(p[:min(int64(len(p)), c.free)])
	c.free -= int64(n)
	return n, err
}

// ZeroID is how git writes that there is no object.
const ZeroID = "0000000000000000000000000000000000000000"

// pushRequest is what a push asks for, before its pack.
type pushRequest struct {
	commands []repostate.Change
	report   bool // the client reads a report
	sideband bool // it reads side-band-64k
	atomic   bool // it wants all or nothing
	shallow  bool // it has only a part of the history
}

// readPush reads the commands of a push (gitprotocol-pack, "Reference Update Request") and leaves
// the reader at the pack. A lone flush, by which git asks whether it may push, is a push without
// commands.
//
// What receive-pack does not advertise, like certificates and push options, breaks the protocol.
// The shallow lines of a client that has only a part of the history are read and forgotten: what it
// sends must link to what is here, shallow or not, and git must check it so.
func readPush(r io.Reader) (*pushRequest, error) {
	lines := pktline.NewScanner(netguard.LimitBody(r, maxCommandBytes))
	p := &pushRequest{}
	seen := map[string]bool{}
	for lines.Scan() {
		if len(lines.Bytes()) == 0 {
			return p, nil
		}
		text := strings.TrimSuffix(string(lines.Bytes()), "\n")
		if len(p.commands) == 0 {
			if id, shallow := strings.CutPrefix(text, "shallow "); shallow && isHex40(id) {
				p.shallow = true
				continue
			}
			var capabilities string
			text, capabilities, _ = strings.Cut(text, "\x00")
			spoken := strings.Fields(capabilities)
			p.report = slices.Contains(spoken, "report-status") || slices.Contains(spoken, "report-status-v2")
			p.sideband = slices.Contains(spoken, "side-band-64k")
			p.atomic = slices.Contains(spoken, "atomic")
		}
		command, err := parseCommand(text)
		switch {
		case err != nil:
			return nil, err
		case seen[command.Name]:
			return nil, malformed("the reference %q is named twice", command.Name)
		case len(p.commands) == maxCommands:
			return nil, malformed("more than %d references in one push", maxCommands)
		}
		seen[command.Name] = true
		p.commands = append(p.commands, command)
	}
	err := lines.Err()
	_, spoken := errors.AsType[*pktline.ErrorLine](err)
	switch {
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = malformed("the commands end too soon")
	case errors.Is(err, pktline.ErrInvalidPktLen), spoken:
		err = malformed("the commands are not pkt-lines")
	}
	return nil, err
}

// parseCommand reads "<old> <new> <name>". Both ids are zero where a client (libgit2) deletes what
// it does not see: that has gone already.
func parseCommand(line string) (c repostate.Change, err error) {
	words := strings.SplitN(line, " ", 3)
	if len(words) < 3 || !isHex40(words[0]) || !isHex40(words[1]) {
		return c, malformed("a command is not \"<old id> <new id> <reference>\"")
	}
	c = repostate.Change{Name: words[2], Old: strings.TrimPrefix(words[0], ZeroID),
		New: strings.TrimPrefix(words[1], ZeroID)}
	switch err := nostr.CheckRefName(c.Name); {
	case !strings.HasPrefix(c.Name, "refs/"):
		return c, malformed("the reference %q is not below refs/", c.Name)
	case err != nil:
		return c, malformed("%v", err)
	}
	return c, nil
}

func isHex40(s string) bool { return s == ZeroID || len(s) == 40 && nostr.IsObjectID(s) }

// encodeCommands writes commands for receive-pack, with a plain report, from which we make the
// answer.
func encodeCommands(commands []repostate.Change, atomic bool) string {
	var b strings.Builder
	capabilities := "\x00 report-status quiet"
	if atomic {
		capabilities += " atomic"
	}
	for _, c := range commands {
		b.WriteString(pktLine(cmp.Or(c.Old, ZeroID) + " " + cmp.Or(c.New, ZeroID) + " " + c.Name + capabilities))
		capabilities = ""
	}
	return b.String() + "0000"
}

// sendsPack reports whether a pack follows the commands.
func (p *pushRequest) sendsPack() bool {
	return slices.ContainsFunc(p.commands, func(c repostate.Change) bool { return c.New != "" })
}

// send writes what became of each command and words for the user's terminal, in the form that the
// client asked for.
func (p *receiving) send(refused Refusals, message string) error {
	var whole strings.Builder
	if p.request.sideband && message != "" {
		sideBand(&whole, 2, strings.TrimRight(message, "\n")+"\n")
	}
	if p.request.report {
		report := p.request.reportOf(refused)
		if p.request.sideband {
			sideBand(&whole, 1, report)
		} else {
			whole.WriteString(report)
		}
	}
	if p.request.sideband {
		whole.WriteString("0000")
	}
	_, err := io.WriteString(p, whole.String())
	return cmp.Or(err, p.begin())
}

// reportOf is the report of a push (gitprotocol-pack, "Report Status").
func (p *pushRequest) reportOf(refused Refusals) string {
	var b strings.Builder
	b.WriteString(pktLine("unpack ok\n"))
	for _, c := range p.commands {
		reason, is := refused[c.Name]
		if !is {
			b.WriteString(pktLine("ok " + c.Name + "\n"))
			continue
		}
		line := repository.OneLine(reason)
		if line == "" || line == "ok" { // "ok" would be git's word for the opposite
			line = "refused"
		}
		b.WriteString(pktLine("ng " + c.Name + " " + line + "\n"))
	}
	return b.String() + "0000"
}

// sideBand writes content on a channel of side-band-64k. A packet has at most 65,520 bytes, its
// length and the channel included.
func sideBand(b *strings.Builder, channel byte, content string) {
	const most = 65520 - 4 - 1
	for len(content) > 0 {
		n := min(len(content), most)
		b.WriteString(pktLine(string(channel) + content[:n]))
		content = content[n:]
	}
}

// refuseAll says of every command that it was not carried out.
func (p *pushRequest) refuseAll(reason string) Refusals {
	refused := Refusals{}
	for _, c := range p.commands {
		refused[c.Name] = reason
	}
	return refused
}
