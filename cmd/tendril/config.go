package main

import (
	"fmt"
	"io"

	"tendril.dev/lib/config"
)

// configCommand is `tendril config`.
type configCommand struct {
	Check configCheck `cmd:"" help:"Check the settings as up and run would read them, and start nothing. Exit status 1 if one is wrong."`
}

// configCheck is `tendril config check`.
type configCheck struct {
	printing        `embed:""`
	config.Settings `embed:""`
}

// configAnswer is what is printed as JSON. Values are left out: some are secrets.
type configAnswer struct {
	Domain   string   `json:"domain"`
	Warnings []string `json:"warnings"`
}

// Run implements the command.
func (c *configCheck) Run(src *config.Source) error {
	settings, err := c.Complete(src)
	if err != nil {
		return err
	}
	answer := configAnswer{Domain: settings.Domain, Warnings: append([]string{}, settings.Warnings...)}
	return c.print(answer, func(w io.Writer) {
		for _, warning := range answer.Warnings {
			fmt.Fprintln(w, "warning:", warning)
		}
		fmt.Fprintf(w, "the settings are right, for the domain %s; %d warnings\n", answer.Domain, len(answer.Warnings))
	})
}
