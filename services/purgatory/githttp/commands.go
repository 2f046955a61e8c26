package githttp

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"

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

// ZeroID is how git writes that there is no object.
const ZeroID = "0000000000000000000000000000000000000000"

// pushRequest is what a push asks for, before its pack.
type pushRequest struct {
	commands []repostate.Change
	report   bool // the client reads a report
	sideband bool // it reads side-band-64k
}

// readPush reads the commands of a push (gitprotocol-pack, "Reference Update Request") and leaves
// the reader at the pack. A lone flush, by which git asks whether it may push, is a push without
// commands.
//
// What receive-pack does not advertise, like certificates and push options, breaks the protocol. The
// shallow lines of a client that has only a part of the history are read and forgotten: what it
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
				continue
			}
			var capabilities string
			text, capabilities, _ = strings.Cut(text, "\x00")
			spoken := strings.Fields(capabilities)
			p.report = slices.Contains(spoken, "report-status") || slices.Contains(spoken, "report-status-v2")
			p.sideband = slices.Contains(spoken, "side-band-64k")
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

// parseCommand reads "<old> <new> <name>".
func parseCommand(line string) (c repostate.Change, err error) {
	words := strings.SplitN(line, " ", 3)
	if len(words) < 3 || !isHex40(words[0]) || !isHex40(words[1]) {
		return c, malformed("a command is not \"<old id> <new id> <reference>\"")
	}
	c = repostate.Change{Name: words[2], Old: strings.TrimPrefix(words[0], ZeroID), New: strings.TrimPrefix(words[1], ZeroID)}
	switch err := nostr.CheckRefName(c.Name); {
	case c.Old == "" && c.New == "":
		return c, malformed("a command changes nothing")
	case !strings.HasPrefix(c.Name, "refs/"):
		return c, malformed("the reference %q is not below refs/", c.Name)
	case err != nil:
		return c, malformed("%v", err)
	}
	return c, nil
}

func isHex40(s string) bool { return s == ZeroID || len(s) == 40 && nostr.IsObjectID(s) }

// encode writes the commands for receive-pack. The capabilities are ours and not the
// client's: all or nothing, and a plain report, from which we make the answer.
func (p *pushRequest) encode() string {
	var b strings.Builder
	capabilities := "\x00 report-status atomic quiet"
	for _, c := range p.commands {
		b.WriteString(pktLine(cmp.Or(c.Old, ZeroID) + " " + cmp.Or(c.New, ZeroID) + " " + c.Name + capabilities))
		capabilities = ""
	}
	return b.String() + "0000"
}

// sendsPack reports whether a pack follows the commands.
func (p *pushRequest) sendsPack() bool {
	return slices.ContainsFunc(p.commands, func(c repostate.Change) bool { return c.New != "" })
}

// send writes a report and words for the user's terminal, in the form that the client asked for.
func (p *receiving) send(report *packp.ReportStatus, message string) error {
	var plain, whole bytes.Buffer
	if p.request.report {
		if err := report.Encode(&plain); err != nil {
			return err
		}
	}
	if p.request.sideband {
		mux := sideband.NewMuxer(sideband.Sideband64k, &whole) // a buffer takes everything
		if message != "" {
			_, _ = mux.WriteChannel(sideband.ProgressMessage, []byte(strings.TrimRight(message, "\n")+"\n"))
		}
		_, _ = mux.Write(plain.Bytes())
		whole.WriteString("0000")
	} else {
		whole = plain
	}
	_, err := p.Write(whole.Bytes())
	return cmp.Or(err, p.begin())
}

// refusalReport says of every command that it was not carried out.
func refusalReport(commands []repostate.Change, reason string) *packp.ReportStatus {
	report := packp.NewReportStatus()
	report.UnpackStatus = "ok"
	line := repository.OneLine(reason)
	if line == "" || line == "ok" { // "ok" would be git's word for the opposite
		line = "refused"
	}
	for _, c := range commands {
		report.CommandStatuses = append(report.CommandStatuses,
			&packp.CommandStatus{ReferenceName: plumbing.ReferenceName(c.Name), Status: line})
	}
	return report
}
