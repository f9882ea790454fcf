import jupyter from '@jupyter/eslint-plugin';
import prettier from 'eslint-config-prettier';
import typescript from 'typescript-eslint';

export default typescript.config(
  { ignores: ['lib', 'node_modules'] },
  ...typescript.configs.recommended,
  prettier,
  { plugins: { jupyter } },
  ...jupyter.configs.recommended,
  {
    files: ['src/**/*.ts'],
    rules: {
      // a 10 kB extension whose widgets activation needs at once
      'jupyter/prefer-lazy-imports': 'off',
      curly: 'error',
      eqeqeq: 'error',
      'no-console': ['error', { allow: ['warn', 'error'] }],
      '@typescript-eslint/naming-convention': [
        'error',
        { selector: 'interface', format: ['PascalCase'], prefix: ['I'] }
      ]
    }
  }
);
