"""The paper's experiments: plan -> runs -> one result for each dataset -> tables and figures."""
